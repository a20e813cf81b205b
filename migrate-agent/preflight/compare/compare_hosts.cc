#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/linux/hostmem/memory_reservation.h"
#include "migrate-agent/preflight/compare/comparison.h"
#include "migrate-agent/process/slurm/step.h"
#include "migrate-agent/transfer/negotiation/negotiation.h"

namespace gcr::preflight {
namespace {

/// A difference that a program may notice, and more than the time that a request takes to arrive.
constexpr double kNoticeableSeconds = 2;

void compare_releases(const char* driver, const std::string& here, const std::string& there,
                      findings::Findings& findings) {
  if (here == there) return;
  findings.add(findings::kDriverRelease,
               fmt::format("the destination's {} is release {}, the source's {}", driver,
                           here.empty() ? "unknown" : here, there.empty() ? "unknown" : there));
}

void compare_drivers(const proto::HostFacts& there, const proto::HostFacts& here,
                     findings::Findings& findings) {
  if (here.driver_version() != 0 && here.driver_version() < there.driver_version()) {
    findings.add(findings::kDriverOlder,
                 fmt::format("the destination's CUDA driver is {}, the source's {}",
                             here.driver_version(), there.driver_version()));
  }
  compare_releases("driver", here.driver_release(), there.driver_release(), findings);
  compare_releases("amdgpu", here.amd_driver_release(), there.amd_driver_release(), findings);
}

void compare_cpus(const proto::HostFacts& there, const proto::HostFacts& here,
                  const worker::Config& config, findings::Findings& findings) {
  if (there.cpu_features() == here.cpu_features() && !there.cpu_features().empty()) return;
  if (there.cpu_features().empty() || here.criu_version() == 0) {
    findings.add(findings::kCpuNotCompared, fmt::format("the CPU here is {}, the source's {}",
                                                        here.cpu_model(), there.cpu_model()));
    return;
  }
  const Status fits = criu::check_cpu_features(config.criu, there.cpu_features());
  if (fits) return;
  findings.add(findings::kCpuFeatures,
               fmt::format("the CPU here is {}, the source's {}: {}", here.cpu_model(),
                           there.cpu_model(), fits.error().message()));
}

void compare_clocks(const proto::HostFacts& there, const proto::HostFacts& here,
                    findings::Findings& findings) {
  constexpr double kSecond = 1e9;
  const double wall = static_cast<double>(here.unix_ns() - there.unix_ns()) / kSecond;
  if (std::abs(wall) <= kNoticeableSeconds) return;
  findings.add(findings::kClockSkew, fmt::format("the clock here is {:.1f} s {} the source's",
                                                 std::abs(wall), wall < 0 ? "behind" : "ahead of"));
}

void check_memory(const proto::PreflightRequest& request, const proto::HostFacts& here,
                  const worker::Config& config, findings::Findings& findings) {
  std::uint64_t landing = 0;
  for (const proto::Buffer& buffer : request.buffers()) landing += buffer.size_bytes();
  if (!request.no_prefill()) landing = std::min(landing, config.landing_window_bytes);
  // While a process is restored, its own memory exists twice: as images and as pages.
  std::uint64_t own = 0;
  for (const auto& member : request.members()) own += 2 * member.image_bytes();
  hostmem::Memory needed = hostmem::needed_for_landing(config.hugepages, landing);
  needed.ordinary_bytes += own;
  const hostmem::Memory free{here.memory_available_bytes(), here.hugepages_free_bytes()};
  if (hostmem::is_enough(free, needed)) return;
  findings.add(findings::kMemoryTooSmall,
               fmt::format("{} of memory and {} in hugepages are available; {} for incoming VRAM "
                           "and {} for the process and the host are needed",
                           format_bytes(free.ordinary_bytes), format_bytes(free.huge_bytes),
                           format_bytes(landing), format_bytes(own + hostmem::kSpareMemoryBytes)));
}

void check_transport(const proto::PreflightRequest& request, const worker::Config& config,
                     findings::Findings& findings) {
  const transfer::DataWish wish{request.transport(), request.plaintext(), 0};
  const auto plan =
      transfer::plan_data(wish, request.offer(), transfer::data_offer(config.unencrypted_data));
  if (!plan) findings.add(findings::kTransport, plan.error().message());
}

void check_slurm_job(const proto::PreflightRequest& request, const worker::Config& config,
                     findings::Findings& findings) {
  const slurm::JobId job = request.slurm_job();
  if (job == 0) return;
  if (request.suspended()) {
    return findings.add(findings::kSlurmJob,
                        "the job is suspended and would stay suspended: resume it first");
  }
  const auto owner = slurm::owner_of_extern_step(config.slurm, job);
  if (!owner) return findings.add(findings::kSlurmJob, owner.error().message());
  for (const proto::ProcessFacts& member : request.members()) {
    if (member.uid() == *owner) continue;
    findings.add(findings::kSlurmJob,
                 fmt::format("Slurm job {} belongs to user {}, a process to user {}", job, *owner,
                             member.uid()));
  }
}

}  // namespace

std::shared_ptr<const criu::Plugin> find_plugin(const proto::PreflightRequest& request,
                                                const proto::HostFacts& here,
                                                const worker::Config& config,
                                                findings::Findings& findings) {
  const auto needs_it = [](const proto::ProcessFacts& member) {
    return member.needs_amdgpu_plugin();
  };
  if (std::ranges::none_of(request.members(), needs_it) || here.criu_version() == 0) return nullptr;
  auto plugin = criu::open_plugin(config.criu, criu::kAmdGpuPlugin, here.criu_version());
  if (plugin) return std::move(*plugin);
  findings.add(findings::kCriuPlugin, plugin.error().message());
  return nullptr;
}

void compare_hosts(const proto::PreflightRequest& request, const proto::HostFacts& here,
                   const worker::Config& config, findings::Findings& findings) {
  compare_drivers(request.host(), here, findings);
  compare_cpus(request.host(), here, config, findings);
  compare_clocks(request.host(), here, findings);
  if (request.host().software() != here.software()) {
    findings.add(findings::kSoftwareDiffers,
                 fmt::format("the destination runs \"{}\", the source \"{}\"", here.software(),
                             request.host().software()));
  }
  check_memory(request, here, config, findings);
  check_disk_space(config, findings);
  if (config.hugepages == hostmem::HugepagePolicy::kRequire && here.hugepages_free_bytes() == 0) {
    findings.add(findings::kNoHugepages,
                 "hugepages = \"require\" is set and no hugepages are free");
  }
  check_transport(request, config, findings);
  check_slurm_job(request, config, findings);
}

}  // namespace gcr::preflight
