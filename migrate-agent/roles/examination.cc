#include "migrate-agent/roles/examination.h"

#include <fmt/format.h>

#include <set>
#include <sstream>

#include "migrate-agent/mover/control_checkpoint.h"
#include "migrate-agent/process/inspect.h"
#include "migrate-agent/process/procfs.h"

namespace gcr::agent {
namespace {

proto::Blocker blocker(const char* id, std::string text) {
  proto::Blocker blocker;
  blocker.set_id(id);
  blocker.set_text(std::move(text));
  return blocker;
}

/// A thread of `pid` as its own PID namespace numbers it. The driver may number threads as the
/// caller sees them, which differs for a process that was restored into a namespace of its own.
pid_t in_own_namespace(pid_t pid, pid_t tid) {
  const auto pids = procfs::namespace_pids(fmt::format("{}/task/{}", pid, tid));
  return pids.empty() ? tid : pids.back();
}

/// The last number of a line like "NSsid: 4100 17".
pid_t innermost(const std::string& line) {
  std::istringstream numbers(line);
  pid_t last = 0;
  for (pid_t number = 0; numbers >> number;) last = number;
  return last;
}

/// Every number that the process uses in its own PID namespace.
std::set<pid_t> used_pids(pid_t pid) {
  std::set<pid_t> used;
  for (const char* field : {"NSpid", "NSpgid", "NSsid"}) {
    used.insert(innermost(procfs::status_field(std::to_string(pid), field)));
  }
  for (const pid_t tid : procfs::threads(pid)) used.insert(in_own_namespace(pid, tid));
  used.erase(0);
  return used;
}

}  // namespace

std::string join(const std::vector<proto::Blocker>& blockers) {
  std::string text;
  for (const proto::Blocker& blocker : blockers) {
    if (!text.empty()) text += "; ";
    text += fmt::format("{} [{}]", blocker.text(), blocker.id());
  }
  return text;
}

std::vector<proto::Blocker> door_blockers(const door::Summary& summary) {
  std::vector<proto::Blocker> blockers;
  if ((summary.blockers & door::kManagedMemory) != 0) {
    blockers.push_back(blocker("managed-memory",
                               "the process uses managed memory (cuMemAllocManaged), which the "
                               "driver cannot checkpoint"));
  }
  if ((summary.blockers & (door::kIpcExported | door::kIpcImported)) != 0) {
    blockers.push_back(blocker("ipc-memory",
                               "the process shares GPU memory with another one by legacy IPC: end "
                               "the sharing first"));
  }
  if ((summary.blockers & door::kForeignHandles) != 0) {
    blockers.push_back(blocker("foreign-handles",
                               "the process shares GPU memory with another one by exported "
                               "handles: end the sharing first"));
  }
  return blockers;
}

Result<Examination> examine(pid_t pid) {
  GCR_ASSIGN(auto inspection, process::inspect(pid));
  std::vector<proto::Blocker> blockers = std::move(inspection.blockers);
  auto door = Door::open(pid);
  if (!door) {
    blockers.push_back(blocker("no-door", door.error().message()));
    return Error(Code::kRefused, join(blockers));
  }
  GCR_ASSIGN(const door::Summary summary, door->hello());
  for (proto::Blocker& found : door_blockers(summary)) blockers.push_back(std::move(found));
  if (!blockers.empty()) return Error(Code::kRefused, join(blockers));
  Examination found{.driver = nullptr,
                    .door = std::move(*door),
                    .facts = std::move(inspection.facts),
                    .inventory = {},
                    .warnings = std::move(inspection.warnings)};
  GCR_ASSIGN(found.driver, mover::CudaDriver::load());
  const mover::ControlCheckpoint control(found.driver, pid);
  GCR_ASSIGN(const pid_t restore_thread, control.restore_thread());
  found.facts.set_door_tid(summary.door_tid);
  found.facts.set_cuda_restore_tid(in_own_namespace(pid, restore_thread));
  for (const pid_t used : used_pids(pid)) found.facts.add_used_pids(used);
  GCR_ASSIGN(const auto entries, found.door.inventory());
  for (const door::DoorEntry& entry : entries) found.inventory.emplace(entry.id, entry);
  return found;
}

}  // namespace gcr::agent
