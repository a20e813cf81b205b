#include "migrate-agent/preflight/compare/host_facts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>

#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/gpu/device/drivers/drivers.h"
#include "migrate-agent/linux/cgroups/hierarchy.h"
#include "migrate-agent/linux/hostmem/memory_info.h"
#include "migrate-agent/linux/hostmem/memory_reservation.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/preflight/amd/amd.h"
#include "migrate-agent/process/inspect/surroundings.h"
#include "src/base/log.h"
#include "src/base/unique_fd.h"
#include "src/base/version.h"

namespace gcr::preflight {
namespace {

namespace fs = std::filesystem;

/// Values of CUcomputemode.
constexpr std::uint32_t kSharedMode = 0;
constexpr std::uint32_t kProhibitedMode = 2;

/// Returns the oldest CRIU that works with a kernel release ("6.18.44"). CRIU 3.17.1 cannot restore
/// on kernels from 6.13 on, 4.1.1 can; from 6.16 on the kernel refuses SO_PASSCRED on Internet
/// sockets, and CRIU 4.2 is the first that tolerates it.
std::uint32_t criu_needed(const std::string& kernel) {
  int major = 0;
  int minor = 0;
  std::sscanf(kernel.c_str(), "%d.%d", &major, &minor);
  return major * 100 + minor < 616 ? 40101 : 40200;
}

std::string criu_name(std::uint32_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return {};
}

std::int64_t now_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

/// Fills in the memory that is free and that no other migration has reserved.
void add_memory(const worker::Config& config, proto::HostFacts& facts) {
  const auto reserved = hostmem::reserved_memory(hostmem::reservations_in(config.runtime_dir));
  const hostmem::Memory left = hostmem::left_of(
      {hostmem::available_memory_bytes().value_or(0), hostmem::free_hugepage_bytes().value_or(0)},
      reserved.value_or(hostmem::Memory()));
  facts.set_memory_available_bytes(left.ordinary_bytes);
  facts.set_hugepages_free_bytes(left.huge_bytes);
}

void add_kernel(proto::HostFacts& facts, findings::Findings& findings) {
  utsname name{};
  if (::uname(&name) == 0) facts.set_kernel(name.release);
  facts.set_cpu_model(cpu_model());
  facts.set_unix_ns(now_ns(CLOCK_REALTIME));
  facts.set_monotonic_ns(now_ns(CLOCK_MONOTONIC));
  facts.set_capabilities(process::capabilities_to_hand_on());
  facts.set_software(std::string("gcr-migrate ") + release());
  const std::string missing = missing_kernel_features();
  if (!missing.empty()) {
    findings.add(findings::kKernelFeatures,
                 fmt::format("kernel {} lacks {}", name.release, missing));
  }
}

/// Checks for a freezer, unless the configuration allows the host to do without.
void check_freezer(const worker::Config& config, findings::Findings& findings) {
  const auto freezer = cgroups::find(cgroups::hierarchies(), cgroups::kFreezer);
  if (freezer || config.allow_unfrozen) return;
  findings.add(findings::kNoFreezer,
               "no control group can be frozen: " + freezer.error().message());
}

void add_criu(const Result<criu::Facts>& criu, proto::HostFacts& facts,
              findings::Findings& findings) {
  if (!criu) {
    findings.add(findings::kCriuMissing, criu.error().message());
    return;
  }
  facts.set_criu_version(criu->version);
  facts.set_cpu_features(criu->cpu_features);
  if (const std::uint32_t needed = criu_needed(facts.kernel()); criu->version < needed) {
    findings.add(findings::kCriuTooOld,
                 fmt::format("CRIU is {}; kernel {} needs {} or newer", criu_name(criu->version),
                             facts.kernel(), criu_name(needed)));
  }
  if (criu->check) return;
  facts.set_criu_check(criu->check.error().message());
  findings.add(findings::kCriuCheck, criu->check.error().message());
}

void add_gpu(const device::GpuInfo& info, const worker::Config& config, Survey& survey) {
  const bool is_amd = info.vendor == device::Vendor::kAmd;
  if (!is_amd) survey.facts.set_driver_version(info.driver_version);
  proto::Gpu& gpu = *survey.facts.add_gpus();
  if (is_amd) describe_amd_gpu(survey.topology, info, gpu);
  gpu.set_uuid(to_bytes(info.uuid));
  gpu.set_name(info.name);
  gpu.set_total_bytes(info.total_bytes);
  gpu.set_allowed(config.allows(info.uuid));
  gpu.set_compute_mode(info.compute_mode);
}

void check_mps(proto::HostFacts& facts, findings::Findings& findings) {
  // The environment of an agent never changes. NOLINTNEXTLINE(concurrency-mt-unsafe)
  const char* configured = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  const fs::path directory = configured != nullptr ? configured : process::kMpsDirectory;
  std::error_code error;
  if (!fs::exists(directory / "control", error)) return;
  facts.set_mps(true);
  findings.add(findings::kMps, fmt::format("an MPS control daemon serves this host's GPUs from {}",
                                           directory.string()));
}

/// Reads the topology of AMD GPUs; there is none on a host without them. A failure becomes a
/// finding once a process uses such a GPU.
void add_topology(const worker::Config& config, Survey& survey) {
  auto topology = device::hip::read_topology(config.sysfs);
  if (!topology)
    return spdlog::warn("cannot read the properties of AMD GPUs: {}", topology.error().message());
  survey.topology = *std::move(topology);
  survey.facts.set_amd_driver_release(survey.topology.driver_release);
  survey.facts.set_amd_keeps_no_waves(!survey.topology.saves_waves);
}

void add_gpus(const worker::Config& config, Survey& survey, findings::Findings& findings) {
  proto::HostFacts& facts = survey.facts;
  facts.set_driver_release(driver_release(procfs::read_text("/proc/driver/nvidia/version")));
  check_mps(facts, findings);
  auto driver = device::load_drivers(config.sysfs);
  if (!driver) {
    const bool too_old = driver.error().code() == Code::kUnsupported;
    findings.add(too_old ? findings::kDriverTooOld : findings::kNoDriver, driver.error().message());
    return;
  }
  survey.driver = std::move(*driver);
  add_topology(config, survey);
  for (const device::GpuInfo& info : survey.driver->gpus()) add_gpu(info, config, survey);
}

}  // namespace

std::string missing_kernel_features() {
  std::string missing;
  const auto need = [&](bool there, const char* name) {
    if (!there) missing += (missing.empty() ? "" : ", ") + std::string(name);
  };
  const UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  need(static_cast<bool>(self), "pidfd_open");
  const UniqueFd file(::memfd_create("gcr-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  need(static_cast<bool>(file), "memfd_create");
  const UniqueFd taken(static_cast<int>(::syscall(SYS_pidfd_getfd, self.get(), file.get(), 0)));
  need(static_cast<bool>(taken), "pidfd_getfd");
  need(::syscall(SYS_close_range, ~0U, ~0U, 0) == 0, "close_range");
  need(::syscall(SYS_clone3, nullptr, 0) == 0 || errno != ENOSYS, "clone3");
  return missing;
}

void check_disk_space(const worker::Config& config, findings::Findings& findings) {
  std::error_code error;
  const auto space = fs::space(config.state_dir, error);
  const std::uint64_t free = error ? 0 : space.available;
  if (free >= kJournalRoomBytes) return;
  findings.add(findings::kStateDirFull,
               fmt::format("{} has {} free; {} are needed", config.state_dir.string(),
                           format_bytes(free), format_bytes(kJournalRoomBytes)));
}

void add_admission_finding(const Status& answer, findings::Findings& findings) {
  if (answer) return;
  const Code code = answer.error().code();
  if (code == Code::kRefused) findings.add(findings::kInMigration, answer.error().message());
  if (code == Code::kResourceExhausted) {
    findings.add(findings::kTooManyMigrations, answer.error().message());
  }
}

std::string driver_release(const std::string& version_text) {
  static constexpr std::string_view kModule = "Kernel Module";
  std::size_t at = version_text.find(kModule);
  if (at == std::string::npos) return {};
  at = version_text.find_first_of("0123456789", version_text.find("  ", at));
  if (at == std::string::npos) return {};
  return version_text.substr(at, version_text.find_first_not_of("0123456789.", at) - at);
}

void check_gpu(const proto::Gpu& gpu, const proto::HostFacts& host, findings::Findings& findings) {
  if (gpu.has_amd()) return check_amd_gpu(gpu, host, findings);
  const std::string name = describe_gpu(gpu);
  if (gpu.name().find(" MIG ") != std::string::npos) {
    findings.add(findings::kMig, name + " is a MIG instance");
  }
  if (gpu.compute_mode() != kSharedMode) {
    findings.add(findings::kComputeMode,
                 fmt::format("{} has compute mode {}", name,
                             gpu.compute_mode() == kProhibitedMode ? "\"prohibited\""
                                                                   : "\"exclusive process\""));
  }
}

Survey survey(const worker::Config& config, findings::Findings& findings) {
  Survey survey;
  // Concurrently with loading the GPU driver, which takes as long.
  auto criu = std::async(std::launch::async, [&config] { return criu::facts(config.criu); });
  add_kernel(survey.facts, findings);
  add_memory(config, survey.facts);
  check_freezer(config, findings);
  add_gpus(config, survey, findings);
  add_criu(criu.get(), survey.facts, findings);
  return survey;
}

}  // namespace gcr::preflight
