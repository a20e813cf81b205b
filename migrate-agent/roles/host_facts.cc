#include "migrate-agent/roles/host_facts.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <set>

#include "migrate-agent/criu/criu.h"
#include "migrate-agent/landing/landing_region.h"
#include "migrate-agent/mover/gpu_map.h"
#include "migrate-agent/process/inspect.h"

namespace gcr::agent {
namespace {

/// The least CRIU for a kernel release ("6.18.44"). 3.17.1 cannot restore on kernels
/// from 6.13, 4.1.1 can; from 6.16 the kernel refuses SO_PASSCRED on sockets of the Internet, which
/// only 4.2 minds not.
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

bool is_allowed(const Uuid& gpu, const Config& config) {
  return config.gpus.empty() ||
         std::find(config.gpus.begin(), config.gpus.end(), gpu) != config.gpus.end();
}

std::vector<mover::MappableGpu> mappable(const proto::HostFacts& host) {
  std::vector<mover::MappableGpu> gpus;
  for (const proto::Gpu& gpu : host.gpus()) {
    gpus.push_back({to_uuid(gpu.uuid()), gpu.name(), gpu.total_bytes(), gpu.allowed()});
  }
  return gpus;
}

class Findings {
 public:
  void add(const char* id, std::string text) {
    proto::Blocker blocker;
    blocker.set_id(id);
    blocker.set_text(std::move(text));
    blockers.push_back(std::move(blocker));
  }
  std::vector<proto::Blocker> blockers;
};

void check_criu(const char* where, const proto::HostFacts& host, Findings& findings) {
  const std::uint32_t needed = criu_needed(host.kernel());
  if (host.criu_version() == 0) {
    findings.add("criu-missing",
                 fmt::format("the {} has no working CRIU: see criu.command in agent.toml", where));
  } else if (host.criu_version() < needed) {
    findings.add("criu-too-old",
                 fmt::format("the {}'s CRIU is {}; its kernel {} needs {} or newer", where,
                             criu_name(host.criu_version()), host.kernel(), criu_name(needed)));
  }
}

void check_software(const proto::HostFacts& there, const proto::HostFacts& here,
                    Findings& findings) {
  if (here.driver_version() < there.driver_version()) {
    findings.add("driver-older",
                 fmt::format("the destination's CUDA driver is {} and the source's {}: upgrade it",
                             here.driver_version(), there.driver_version()));
  }
  check_criu("source", there, findings);
  check_criu("destination", here, findings);
}

/// Without prefill the VRAM only has to be there in principle: it may be free by then.
Result<std::uint64_t> usable_vram(const Uuid& gpu, bool no_prefill, const proto::HostFacts& here,
                                  mover::IncomingVram& vram) {
  if (!no_prefill) return vram.free_bytes(gpu);
  for (const proto::Gpu& info : here.gpus()) {
    if (to_uuid(info.uuid()) == gpu) return info.total_bytes();
  }
  return Error(Code::kNotFound, fmt::format("this host has no GPU-{}", gpu.to_string()));
}

void check_vram(const proto::PreflightRequest& request, const std::vector<mover::GpuPair>& map,
                const proto::HostFacts& here, mover::IncomingVram& vram, Findings& findings) {
  std::map<Uuid, std::uint64_t> wanted;
  for (const proto::Buffer& buffer : request.buffers()) {
    const Uuid from = to_uuid(buffer.gpu_uuid());
    const auto pair = std::find_if(map.begin(), map.end(),
                                   [&](const mover::GpuPair& p) { return p.from == from; });
    if (pair != map.end()) wanted[pair->to] += buffer.size_bytes();
  }
  for (const auto& [gpu, bytes] : wanted) {
    const auto free = usable_vram(gpu, request.no_prefill(), here, vram);
    if (!free) {
      findings.add("gpu-unusable", free.error().message());
    } else if (*free < bytes + kContextReserveBytes) {
      findings.add(
          "vram-too-small",
          fmt::format("GPU-{} of the destination has {} of VRAM{}; {} for buffers and {} "
                      "for the process's context are needed",
                      gpu.to_string(), format_bytes(*free), request.no_prefill() ? "" : " free",
                      format_bytes(bytes), format_bytes(kContextReserveBytes)));
    }
  }
}

void check_memory(const proto::PreflightRequest& request, const proto::HostFacts& here,
                  Findings& findings) {
  std::uint64_t landing = 0;
  for (const proto::Buffer& buffer : request.buffers()) landing += buffer.size_bytes();
  // The process's own memory is there twice while it is restored: as images and as pages.
  const std::uint64_t needed = landing + 2 * request.process().resident_bytes();
  const std::uint64_t available = here.memory_available_bytes() + here.hugepages_free_bytes();
  if (available < needed) {
    findings.add(
        "memory-too-small",
        fmt::format("the destination has {} of memory available; {} for the landing region "
                    "and {} for the process are needed",
                    format_bytes(available), format_bytes(landing),
                    format_bytes(needed - landing)));
  }
}

}  // namespace

Uuid to_uuid(const std::string& bytes) {
  Uuid uuid;
  if (bytes.size() == uuid.bytes.size()) std::memcpy(uuid.bytes.data(), bytes.data(), bytes.size());
  return uuid;
}

std::string to_bytes(const Uuid& uuid) {
  return {reinterpret_cast<const char*>(uuid.bytes.data()), uuid.bytes.size()};
}

proto::HostFacts host_facts(const Config& config, const mover::CudaDriver& driver) {
  proto::HostFacts facts;
  utsname name{};
  if (::uname(&name) == 0) facts.set_kernel(name.release);
  facts.set_cpu_model(cpu_model());
  facts.set_driver_version(driver.version());
  if (auto version = criu::version({config.criu_command})) facts.set_criu_version(*version);
  if (auto bytes = landing::available_memory_bytes()) facts.set_memory_available_bytes(*bytes);
  if (auto bytes = landing::free_hugepage_bytes()) facts.set_hugepages_free_bytes(*bytes);
  for (const mover::GpuInfo& info : driver.gpus()) {
    proto::Gpu& gpu = *facts.add_gpus();
    gpu.set_uuid(to_bytes(info.uuid));
    gpu.set_name(info.name);
    gpu.set_total_bytes(info.total_bytes);
    gpu.set_allowed(is_allowed(info.uuid, config));
  }
  return facts;
}

Fit fit(const proto::PreflightRequest& request, const proto::HostFacts& here, const Config& config,
        mover::IncomingVram& vram) {
  Findings findings;
  check_software(request.host(), here, findings);
  check_memory(request, here, findings);
  if (config.hugepages == HugepagePolicy::kRequire && here.hugepages_free_bytes() == 0) {
    findings.add("no-hugepages",
                 "the destination's configuration requires hugepages and none are free: raise "
                 "vm.nr_hugepages or set hugepages = \"auto\"");
  }
  std::vector<mover::MappableGpu> source = mappable(request.host());
  std::set<Uuid> used;
  for (const proto::Buffer& buffer : request.buffers()) used.insert(to_uuid(buffer.gpu_uuid()));
  for (mover::MappableGpu& gpu : source) gpu.chosen = used.erase(gpu.uuid) != 0;
  for (const Uuid& gpu : used) {
    findings.add("gpu-unknown", fmt::format("the process has buffers on GPU-{}, which the source "
                                            "does not name among its GPUs",
                                            gpu.to_string()));
  }
  Fit fit;
  auto map = mover::map_gpus(source, mappable(here));
  if (map) {
    fit.gpu_map = std::move(*map);
    check_vram(request, fit.gpu_map, here, vram, findings);
  } else {
    findings.add("gpu-map", map.error().message());
  }
  for (proto::Blocker& blocker : process::compare_files(request.process())) {
    findings.blockers.push_back(std::move(blocker));
  }
  fit.blockers = std::move(findings.blockers);
  return fit;
}

}  // namespace gcr::agent
