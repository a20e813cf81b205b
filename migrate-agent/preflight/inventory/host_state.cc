#include "migrate-agent/preflight/inventory/host_state.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>

#include "migrate-agent/gpu/access/door/door.h"
#include "migrate-agent/gpu/device/drivers/drivers.h"
#include "migrate-agent/linux/cgroups/devices.h"
#include "migrate-agent/linux/hostmem/landing_region.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/preflight/inventory/vram.h"
#include "migrate-agent/process/inspect/inspect.h"
#include "src/base/users.h"

namespace gcr::inventory {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

/// A door replies within a millisecond, unless its process is delayed.
constexpr Milliseconds kDoorPatience{250};
/// A query holds a door's lock for less than this; a migration holds it longer.
constexpr Milliseconds kLockPatience{50};
/// Limit for all processes together, so that a query always ends.
constexpr Milliseconds kTotalPatience{3000};

/// Returns the VRAM by GPU, in the order of their UUIDs. kUnavailable while a migration holds it:
/// the process still lists its GPUs then.
Result<std::map<std::string, std::uint64_t>> vram_of(pid_t pid, Milliseconds patience) {
  GCR_ASSIGN(const auto access, gpu::open_access(pid, kLockPatience, patience));
  GCR_ASSIGN(const gpu::AccessState state, access->read_state(patience));
  if (state.detached)
    return Error(Code::kUnavailable, "process is detached: a migration holds its VRAM");
  GCR_ASSIGN(const auto allocations, access->allocations());
  std::map<std::string, std::uint64_t> vram;
  for (const gpu::LocalAllocation& allocation : allocations) {
    vram[to_bytes(allocation.gpu)] += allocation.size_bytes;
  }
  return vram;
}

/// Describes a process; kNotFound if it has ended or is exiting.
Result<FoundProcess> describe(pid_t pid, Milliseconds patience) {
  FoundProcess found;
  proto::GpuProcess& process = found.process;
  const auto stat = procfs::read_stat(pid);
  if (!stat || procfs::is_exiting(*stat))
    return Error(Code::kNotFound, fmt::format("process {} has ended", pid));
  process.set_pid(pid);
  process.set_start_time(stat->start_time);
  process.set_command(process::command_of(pid));
  process.set_uid(procfs::owner_of(pid));
  process.set_user(user_name(process.uid()));
  process.set_resident_bytes(procfs::resident_bytes(*stat));
  // A stopped process would reply only after it is continued.
  const bool is_stopped = stat->state == 'T' || stat->state == 't';
  if (is_stopped || patience <= Milliseconds::zero()) return found;
  const auto vram = vram_of(pid, patience);
  if (!vram && vram.error().code() == Code::kNotFound) return vram.error();
  if (!vram) {
    found.in_use = vram.error().code() == Code::kUnavailable;
    return found;
  }
  found.has_reported = true;
  for (const auto& [uuid, bytes] : *vram) {
    proto::GpuUse& use = *process.add_gpus();
    use.set_uuid(uuid);
    use.set_vram_bytes(bytes);
  }
  return found;
}

/// Returns whether a process belongs to this host: by its VRAM or, if it has none, by its network
/// namespace.
bool is_ours(const proto::GpuProcess& process, const std::set<std::string>& gpus) {
  if (process.gpus().empty()) {
    return procfs::namespace_link(process.pid(), "net") ==
           procfs::namespace_link(::getpid(), "net");
  }
  return std::ranges::any_of(process.gpus(),
                             [&](const proto::GpuUse& use) { return gpus.contains(use.uuid()); });
}

}  // namespace

Result<proto::HostFacts> offer(const worker::Config& config) {
  GCR_ASSIGN(const auto driver, device::load_drivers(config.sysfs));
  proto::HostFacts facts;
  facts.set_slurm_node(config.slurm.node);
  utsname name{};
  if (::uname(&name) == 0) facts.set_kernel(name.release);
  if (auto bytes = hostmem::available_memory_bytes()) facts.set_memory_available_bytes(*bytes);
  if (auto bytes = hostmem::free_hugepage_bytes()) facts.set_hugepages_free_bytes(*bytes);
  FreeVram free_vram(driver, config.sysfs);
  const std::map<Uuid, std::string> nodes = cgroups::gpu_nodes();
  for (const device::GpuInfo& info : driver->gpus()) {
    if (info.vendor == device::Vendor::kNvidia) facts.set_driver_version(info.driver_version);
    proto::Gpu& gpu = *facts.add_gpus();
    gpu.set_uuid(to_bytes(info.uuid));
    gpu.set_name(info.name);
    gpu.set_total_bytes(info.total_bytes);
    gpu.set_allowed(config.allows(info.uuid));
    if (const auto node = nodes.find(info.uuid); node != nodes.end()) {
      gpu.set_device_file(node->second);
    }
    // A GPU without space for a context has no free VRAM to offer.
    gpu.set_free_bytes(free_vram.of(info.uuid).value_or(0));
  }
  return facts;
}

double load_per_core() {
  double one_minute = 0;
  const long cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (::getloadavg(&one_minute, 1) != 1 || cores < 1) return 0;
  return one_minute / static_cast<double>(cores);
}

std::vector<FoundProcess> processes(const std::vector<proto::Gpu>& gpus) {
  std::set<std::string> uuids;
  for (const proto::Gpu& gpu : gpus) uuids.insert(gpu.uuid());
  std::vector<pid_t> pids = procfs::processes();
  std::ranges::sort(pids);
  const auto end = Clock::now() + kTotalPatience;
  std::vector<FoundProcess> all;
  for (const pid_t pid : pids) {
    if (!gpu::has_door(pid)) continue;
    const auto left = std::chrono::duration_cast<Milliseconds>(end - Clock::now());
    auto found = describe(pid, std::min(kDoorPatience, left));
    if (found && is_ours(found->process, uuids)) all.push_back(*std::move(found));
  }
  return all;
}

}  // namespace gcr::inventory
