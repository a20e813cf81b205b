// The agent's side of the door (preload/door_protocol.h): how it finds the preload library in an
// application, and the requests that it sends.
#pragma once

#include <memory>
#include <optional>

#include "migrate-agent/gpu/access/gpu_access.h"
#include "preload/door_protocol.h"

namespace gcr::gpu {

struct FoundDoor {
  UniqueFd process;  ///< pidfd
  UniqueFd card;     ///< the memfd, locked against other agents as long as it is open
  UniqueFd socket;   ///< the agent's end
};

/// Finds the door in the process's descriptor table. Errors as of Door::open(). Waits up to
/// `patience` for another agent to release the door.
Result<FoundDoor> find_door(pid_t pid, std::chrono::milliseconds patience);

/// Whether the process has a door: it runs under the preload library and has initialised CUDA or
/// HIP. Only reads its descriptor table, and does not lock the door.
bool has_door(pid_t pid);

class Door : public GpuAccess {
 public:
  static constexpr Milliseconds kLockPatience = std::chrono::seconds(1);

  /// `pid` is a PID in the caller's PID namespace; the process may be in a namespace below. Changes
  /// nothing in the process. kNotFound: there is no such process, it does not run under the preload
  /// library, or it has initialised neither CUDA nor HIP (the message tells which).
  /// kPermissionDenied: the caller may not ptrace it. kUnavailable: another agent has the door, and
  /// does not release it within `lock_patience`. kUnsupported: another protocol version. Requests
  /// that have no limit of their own may take `patience`.
  static Result<Door> open(pid_t pid, Milliseconds lock_patience = kLockPatience,
                           Milliseconds patience = kPatience);

  pid_t pid() const { return pid_; }

  /// Counts, blockers, the state of the gate: read_state() in full.
  Result<door::Summary> hello(Milliseconds patience = kPatience);

  /// allocations() in full.
  Result<std::vector<door::DoorEntry>> inventory();

  /// The first half of attach(): hands descriptors to a detached application, any number of times.
  Status offer(std::vector<std::pair<std::uint64_t, UniqueFd>> descriptors);

  Result<AccessState> read_state(Milliseconds patience) override;
  Result<std::vector<LocalAllocation>> allocations() override;
  Result<std::vector<ExportedAllocation>> take(std::span<const std::uint64_t> ids) override;
  /// Closes the gate.
  Result<Held> hold(Microseconds patience, Milliseconds lease) override;
  Result<Held> step(Microseconds patience) override;
  /// Opens the gate.
  Status resume() override;
  Status detach() override;
  Status attach(std::vector<std::pair<std::uint64_t, UniqueFd>> descriptors) override;
  Result<std::vector<Replacement>> replace(std::span<const std::uint64_t> ids) override;
  Result<std::uint64_t> drop_pages(std::span<const Pages> pages) override;
  Status use_huge_pages(std::span<const Pages> pages) override;
  Result<UniqueFd> watch_memory() override;
  Result<std::vector<Pages>> registered_memory() override;

 private:
  struct Exchange;
  struct Limit;

  Door(pid_t pid, FoundDoor found, Milliseconds patience);

  Result<door::DoorReply> greet(Milliseconds patience);
  Status send(const door::DoorRequest& request, std::span<const int> descriptors,
              const Limit& limit);
  Result<Exchange> receive(std::uint32_t sequence, const Limit& limit);
  Result<Exchange> exchange(const door::DoorRequest& request, const Limit& limit,
                            std::span<const int> descriptors = {});
  Result<Exchange> ask(const door::DoorRequest& request, const char* order, const Limit& limit,
                       std::span<const int> descriptors = {});
  Result<Exchange> ask_for_descriptors(door::Op op, std::span<const std::uint64_t> ids,
                                       std::size_t each, const char* order, const char* doing);
  Result<std::optional<std::vector<door::DoorEntry>>> inventory_once();
  Result<Held> drain(door::DoorRequest request, Microseconds patience, const char* doing);
  door::DoorRequest make_request(door::Op op);
  Result<std::uint64_t> advise(door::Op op, std::span<const Pages> pages, const char* doing);
  Error ended() const;

  pid_t pid_;
  FoundDoor found_;
  Milliseconds patience_;
  std::uint64_t session_;
  std::uint32_t sequence_;
};

/// The GPU state of a process: behind its door. Patience and errors as in Door::open.
Result<std::unique_ptr<GpuAccess>> open_access(
    pid_t pid, GpuAccess::Milliseconds lock_patience = Door::kLockPatience,
    GpuAccess::Milliseconds patience = GpuAccess::kPatience);

}  // namespace gcr::gpu
