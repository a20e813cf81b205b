#include "migrate-agent/process/zero_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "migrate-agent/criu/tracing.h"
#include "migrate-agent/process/mappings.h"
#include "migrate-agent/process/procfs.h"
#include "migrate-agent/process/zero_scan.h"

namespace gcr::process {
namespace {

using Clock = std::chrono::steady_clock;
using agent::Door;

/// A mapping is the driver's, or as good as that, if so much of it went.
bool is_nearly_empty(const AddressRange& mapping, std::uint64_t dropped_bytes) {
  constexpr std::uint64_t kHugePageBytes = 2 << 20;
  return dropped_bytes >= kHugePageBytes && dropped_bytes >= mapping.bytes() / 10 * 9;
}

/// Holds every thread of a process but one, until it is destroyed. Belongs to the thread that made
/// it; if that ends, the kernel lets the threads go.
class HeldThreads {
 public:
  explicit HeldThreads(pid_t pid) : pid_(pid) {}
  HeldThreads(const HeldThreads&) = delete;
  HeldThreads& operator=(const HeldThreads&) = delete;
  ~HeldThreads() { let_go(); }

  void let_go() {
    for (const auto& [tid, signal_number] : held_) criu::tracing::let_go(tid, signal_number);
    held_.clear();
  }

  /// `running` as the process's own PID namespace sees it.
  Status hold_all_but(pid_t running) {
    bool found_running = false;
    // A thread that is not held yet may start another: done when a look finds nothing new.
    for (bool found_new = true; found_new;) {
      found_new = false;
      for (const pid_t tid : procfs::threads(pid_)) {
        if (held_.contains(tid) || tid == running_) continue;
        found_new = true;
        const auto pids = procfs::namespace_pids(fmt::format("{}/task/{}", pid_, tid));
        if (pids.empty()) continue;  // it ended
        if (pids.back() == running) {
          running_ = tid;
          found_running = true;
          continue;
        }
        GCR_TRY(hold(tid));
      }
    }
    if (found_running) return {};
    return Error(Code::kNotFound, fmt::format("process {} has no thread {}", pid_, running));
  }

 private:
  Status hold(pid_t tid) {
    const auto signal_number = criu::tracing::stop(tid, 0);
    if (!signal_number && signal_number.error().code() == Code::kNotFound) return {};
    held_[tid] = signal_number ? *signal_number : 0;
    if (!signal_number) return signal_number.error().while_doing(fmt::format("process {}", pid_));
    return {};
  }

  const pid_t pid_;
  pid_t running_ = 0;
  std::map<pid_t, int> held_;  ///< thread id -> signal to deliver when it goes on
};

/// What may be scanned: nothing at all if the kernel itself writes for the process.
std::vector<AddressRange> droppable(const std::vector<MemoryMapping>& mappings,
                                    std::uint64_t door_stack) {
  std::vector<AddressRange> ranges;
  for (const MemoryMapping& mapping : mappings) {
    if (mapping.asynchronous_io) return {};
    const bool stack = mapping.range.start <= door_stack && door_stack < mapping.range.end;
    if (mapping.droppable && !stack && mapping.anonymous_bytes > 0) ranges.push_back(mapping.range);
  }
  return ranges;
}

std::vector<Door::Pages> pages_of(const std::vector<AddressRange>& ranges) {
  std::vector<Door::Pages> pages;
  pages.reserve(ranges.size());
  for (const AddressRange& range : ranges) pages.push_back({range.start, range.bytes()});
  return pages;
}

/// Those of `mappings` that are nearly empty without `zeros`; both in the order of addresses.
std::vector<AddressRange> nearly_empty(const std::vector<AddressRange>& mappings,
                                       const std::vector<AddressRange>& zeros) {
  std::vector<AddressRange> found;
  auto zero = zeros.begin();
  for (const AddressRange& mapping : mappings) {
    std::uint64_t dropped = 0;
    while (zero != zeros.end() && zero->start < mapping.end) {
      // Where mappings touch, so may their zeros.
      dropped += std::min(zero->end, mapping.end) - std::max(zero->start, mapping.start);
      if (zero->end > mapping.end) break;
      ++zero;
    }
    if (is_nearly_empty(mapping, dropped)) found.push_back(mapping);
  }
  return found;
}

}  // namespace

Result<DroppedPages> drop_zero_pages(Door& door) {
  const auto start = Clock::now();
  const pid_t pid = door.pid();
  GCR_ASSIGN(const door::Summary summary, door.hello());
  DroppedPages dropped;
  HeldThreads threads(pid);
  const auto hold_start = Clock::now();
  GCR_TRY(threads.hold_all_but(summary.door_tid));
  GCR_ASSIGN(const auto mappings, read_mappings(pid));
  const auto where = droppable(mappings, summary.door_stack);
  GCR_ASSIGN(const ZeroScan scan, find_zero_pages(pid, where));
  dropped.scanned_bytes = scan.scanned_bytes;
  GCR_ASSIGN(dropped.dropped_bytes, door.drop_pages(pages_of(scan.zeros)));
  threads.let_go();
  dropped.held = Clock::now() - hold_start;
  // Only a hint: a kernel without huge pages refuses it.
  (void)door.use_huge_pages(pages_of(nearly_empty(where, scan.zeros)));
  dropped.duration = Clock::now() - start;
  return dropped;
}

}  // namespace gcr::process
