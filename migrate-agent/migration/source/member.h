// The processes of the job: the claimed one first, then all below it. A member's index in the list
// is its number in messages and in the job's allocations.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "migrate-agent/commit/journal/journal.h"
#include "migrate-agent/gpu/access/gpu_access.h"
#include "migrate-agent/gpu/allocations/allocations.h"
#include "migrate-agent/gpu/device/device.h"
#include "migrate-agent/linux/procfs/process_handle.h"
#include "migrate-agent/process/inspect/inspect.h"
#include "proto/control.pb.h"

namespace gcr::migration {

struct Member {
  procfs::Process process;
  bool examined = false;   ///< true too if it ended before its examination
  gpu::MemberId number{};  ///< its index; set when the journal begins
  std::optional<process::Confinement> confinement{};  ///< its confinement when it was examined
  std::unique_ptr<gpu::GpuAccess> access{};           ///< null: it uses no GPU
  std::unique_ptr<device::Control> control{};   ///< control by its driver; null: it uses no GPU
  std::optional<proto::DumpedMember> dumped{};  ///< its state when the dump had stopped it

  pid_t pid() const { return process.pid(); }
};

/// A deque: references to members stay valid when others are added.
using Members = std::deque<Member>;

inline std::vector<pid_t> pids_of(const Members& members) {
  std::vector<pid_t> pids;
  for (const Member& member : members) pids.push_back(member.pid());
  return pids;
}

/// A process's identity in the journal.
inline journal::ProcessId id_of(pid_t pid, std::uint64_t start_time) {
  journal::ProcessId id;
  id.set_pid(pid);
  id.set_start_time(start_time);
  return id;
}

inline journal::ProcessId id_of(const Member& member) {
  return id_of(member.pid(), member.process.start_time());
}

inline journal::ProcessIds ids_of(const Members& members) {
  journal::ProcessIds ids;
  for (const Member& member : members) *ids.Add() = id_of(member);
  return ids;
}

/// The members that use GPUs.
inline std::vector<Member*> gpu_members_of(Members& members) {
  std::vector<Member*> found;
  for (Member& member : members) {
    if (member.access != nullptr) found.push_back(&member);
  }
  return found;
}

/// How long a refused job is examined again each time one of its processes has ended: a
/// short-lived one, such as a compiler, whose removed files disappear with it.
inline constexpr std::chrono::seconds kTransience{5};

/// Whether a member other than the first has ended, or ends within a second. Waits only if one of
/// them is younger than ten seconds.
bool any_member_ends(const journal::ProcessIds& members);

}  // namespace gcr::migration
