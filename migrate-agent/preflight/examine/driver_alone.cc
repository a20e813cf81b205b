// The part of the examination that looks at a member that was not started under the preload library
// and so moves through the driver alone (design decision 23): the expected downtime, and shared
// memory that can only be inferred from outside.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "migrate-agent/gpu/access/door/door.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/preflight/examine/examination.h"
#include "migrate-agent/process/inspect/descriptors.h"
#include "migrate-agent/process/inspect/sharing.h"
#include "migrate-agent/process/inspect/together.h"
#include "migrate-agent/worker/config/config.h"
#include "src/base/units.h"

namespace gcr::preflight {
namespace {

using std::chrono::milliseconds;

/// Rates at which the driver moves VRAM into main memory and back (measured on an H200). In between
/// the content is read, sent and written like other memory: at the link's rate, or at about
/// kMemoryBytesPerSecond.
constexpr double kCheckpointBytesPerSecond = 2.4e9;
constexpr double kRestoreBytesPerSecond = 7e9;
constexpr double kMemoryBytesPerSecond = 4e9;

/// The part of a downtime that does not depend on the amount of memory.
constexpr milliseconds kLeastDowntime{500};
/// A query holds a door's lock for less than this; a migration holds it longer.
constexpr milliseconds kDoorLockPatience{50};
constexpr milliseconds kDoorAnswerPatience{250};

double seconds(std::uint64_t bytes, double bytes_per_second) {
  return static_cast<double>(bytes) / bytes_per_second;
}

/// Returns whether a process under the library reports that it shares nothing; false if it cannot
/// be asked.
bool reports_no_sharing(pid_t pid) {
  const auto access = gpu::open_access(pid, kDoorLockPatience, kDoorAnswerPatience);
  if (!access) return false;
  const auto state = (*access)->read_state(kDoorAnswerPatience);
  if (!state || state->ipc_memory || state->foreign_handles || state->lost_pools ||
      !state->past_gate.empty()) {
    return false;
  }
  const auto allocations = (*access)->allocations();
  return allocations && std::ranges::none_of(*allocations, &gpu::LocalAllocation::shared);
}

/// Returns whether the process is an agent or a child of one (a keeper): these share no memory.
bool is_agent_or_keeper(pid_t pid) {
  return process::is_agent_or_gone(pid) ||
         process::is_agent_or_gone(procfs::read_stat(pid).value_or(procfs::Stat()).parent);
}

/// Formats a duration: "3.2 s".
std::string format_seconds(milliseconds duration) {
  return fmt::format("{:.1f} s", static_cast<double>(duration.count()) / 1000);
}

}  // namespace

std::uint64_t DriverAlone::vram_bytes() const {
  return std::accumulate(vram.begin(), vram.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const auto& on_gpu) { return sum + on_gpu.second; });
}

milliseconds slow_downtime(std::uint64_t vram_bytes, std::uint64_t memory_bytes,
                           std::uint64_t link_bytes_per_s) {
  double rate = kMemoryBytesPerSecond;
  if (link_bytes_per_s != 0) rate = std::min(rate, static_cast<double>(link_bytes_per_s));
  const double moving = seconds(vram_bytes, kCheckpointBytesPerSecond) +
                        seconds(vram_bytes + memory_bytes, rate) +
                        seconds(vram_bytes, kRestoreBytesPerSecond);
  return kLeastDowntime + milliseconds(static_cast<std::int64_t>(moving * 1000));
}

void check_unseen_memory(const std::vector<pid_t>& members, const gpu::SameMemory& shared,
                         findings::Findings& findings) {
  if (shared.any() >= 0) {
    findings.add(findings::kUnseenMemory,
                 "other processes of the job share GPU memory, possibly with this one");
  }
  for (const pid_t pid : procfs::processes()) {
    if (std::ranges::find(members, pid) != members.end()) continue;
    if (!process::has_cuda_context(pid) || is_agent_or_keeper(pid)) continue;
    if (procfs::is_in_vfork(pid) || reports_no_sharing(pid)) continue;
    findings.add(findings::kUnseenMemory,
                 fmt::format("process {} also uses CUDA, and may share memory with it",
                             process::describe_process(pid)));
  }
}

void check_slow_downtime(const DriverAlone& member, const proto::MigrateRequest& request,
                         findings::Findings& findings) {
  const double expected_ms = in_milliseconds(member.downtime);
  findings.add(
      request.allow_slow() ? findings::kNoLibrarySlow : findings::kNoLibrary,
      fmt::format("process {} was not started under `gcr-migrate run`: up to {} of VRAM go through "
                  "the driver while it is stopped, for about {}",
                  process::describe_process(member.pid), format_bytes(member.vram_bytes()),
                  format_seconds(member.downtime)));
  double limit_ms = request.downtime_limit_ms();
  if (limit_ms <= 0 && request.strict()) limit_ms = worker::kDefaultDowntimeLimitMs;
  if (!request.allow_slow() || limit_ms <= 0 || expected_ms <= limit_ms) return;
  findings.add(findings::kDowntimeLimit,
               fmt::format("a downtime of about {} is expected, and --downtime-limit allows {}",
                           format_seconds(member.downtime),
                           format_seconds(milliseconds(static_cast<std::int64_t>(limit_ms)))));
}

}  // namespace gcr::preflight
