#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>

#include "migrate-agent/gpu/access/door/door.h"
#include "migrate-agent/gpu/access/door/find_door.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/preflight/inventory/host_state.h"
#include "migrate-agent/process/inspect/inspect.h"
#include "src/base/users.h"

namespace gcr::inventory {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

/// A door answers within a millisecond, unless its process is held up.
constexpr Milliseconds kDoorPatience{250};
/// Who only looks, as we do, is gone by then; a migration stays.
constexpr Milliseconds kLockPatience{50};
/// For all of them together: who asks does not wait forever.
constexpr Milliseconds kTotalPatience{3000};

/// VRAM by GPU, in the order of their UUIDs. kUnavailable while a migration has taken it away: its
/// process then still names the GPUs that it had.
Result<std::map<std::string, std::uint64_t>> vram_of(pid_t pid, Milliseconds patience) {
  GCR_ASSIGN(const auto access, gpu::open_access(pid, kLockPatience, patience));
  GCR_ASSIGN(const gpu::AccessState state, access->look(patience));
  if (state.detached) return Error(Code::kUnavailable, "its VRAM is in an agent's hands");
  GCR_ASSIGN(const auto allocations, access->allocations());
  std::map<std::string, std::uint64_t> vram;
  for (const gpu::LocalAllocation& allocation : allocations) {
    vram[to_bytes(allocation.gpu)] += allocation.size_bytes;
  }
  return vram;
}

/// kNotFound if it has ended, or is about to.
Result<FoundProcess> look_at(pid_t pid, Milliseconds patience) {
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
  // A stopped process would leave the question lying until it goes on.
  const bool is_stopped = stat->state == 'T' || stat->state == 't';
  if (is_stopped || patience <= Milliseconds::zero()) return found;
  const auto vram = vram_of(pid, patience);
  if (!vram && vram.error().code() == Code::kNotFound) return vram.error();
  if (!vram) {
    found.in_use = vram.error().code() == Code::kUnavailable;
    return found;
  }
  found.has_told = true;
  for (const auto& [uuid, bytes] : *vram) {
    proto::GpuUse& use = *process.add_gpus();
    use.set_uuid(uuid);
    use.set_vram_bytes(bytes);
  }
  return found;
}

/// By its VRAM; without any, by its network namespace.
bool is_ours(const proto::GpuProcess& process, const std::set<std::string>& gpus) {
  if (process.gpus().empty()) {
    return procfs::namespace_link(process.pid(), "net") ==
           procfs::namespace_link(::getpid(), "net");
  }
  return std::ranges::any_of(process.gpus(),
                             [&](const proto::GpuUse& use) { return gpus.contains(use.uuid()); });
}

}  // namespace

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
    auto found = look_at(pid, std::min(kDoorPatience, left));
    if (found && is_ours(found->process, uuids)) all.push_back(*std::move(found));
  }
  return all;
}

}  // namespace gcr::inventory
