// The agent's side of the door (preload/door_protocol.h): how it finds the preload library inside
// an application and what it asks of it.
//
// A Door belongs to one thread at a time; methods block, each no longer than its deadline. After an
// error the Door can still be used, unless the error says that the process has ended.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "preload/door_protocol.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::agent {

/// A physical allocation and a descriptor that owns it.
struct ExportedBuffer {
  door::DoorEntry entry;
  UniqueFd descriptor;
};

class Door {
 public:
  using Milliseconds = std::chrono::milliseconds;
  static constexpr Milliseconds kPatience = std::chrono::seconds(30);
  static constexpr Milliseconds kLockPatience = std::chrono::seconds(1);

  /// `pid` as the caller's PID namespace sees it; the process may be in a namespace below. Nothing
  /// in it changes. kNotFound: there is no such process, it does not run under the preload library,
  /// or it has not initialised CUDA (the sentence tells which). kPermissionDenied: the caller may
  /// not ptrace it. kUnavailable: another agent is at the door, and does not leave within
  /// `patience`. kUnsupported: another protocol version.
  static Result<Door> open(pid_t pid, Milliseconds patience = kLockPatience);

  Door(Door&&) noexcept = default;
  Door& operator=(Door&&) noexcept = default;

  pid_t pid() const { return pid_; }

  /// Counts, blockers, the state of the gate.
  Result<door::Summary> hello(Milliseconds deadline = kPatience);

  /// Every physical allocation, in the order of ids; all of one moment.
  Result<std::vector<door::DoorEntry>> inventory(Milliseconds deadline = kPatience);

  /// One descriptor per id, in the order of `ids`. The application keeps its memory. On failure
  /// there are none.
  Result<std::vector<ExportedBuffer>> export_buffers(std::span<const std::uint64_t> ids,
                                                     Milliseconds deadline = kPatience);

  /// Holds back the application's calls and waits until its GPUs are idle. kTimeout says what stood
  /// in the way; the gate is then open again. It opens by itself `lease` after the last request (0:
  /// never), until a detach.
  Status close_gate(Milliseconds timeout, Milliseconds lease);

  /// The application lets go of all tracked VRAM. Needs a closed gate, and descriptors of
  /// everything, exported through this Door since it was opened and since the last attach. On
  /// failure all is mapped as before; only with kDataLoss it is detached, and offer and attach
  /// bring it back.
  Status detach(Milliseconds deadline = kPatience);

  /// Hands descriptors to a detached application, any number of times. They are gone from here
  /// whatever comes.
  Status offer(std::vector<std::pair<std::uint64_t, UniqueFd>> descriptors,
               Milliseconds deadline = kPatience);

  /// Maps everything where it was. On failure nothing is mapped and the offered descriptors stay.
  Status attach(Milliseconds deadline = kPatience);

  /// Lets the application's calls pass. Needs to be attached.
  Status open_gate(Milliseconds deadline = kPatience);

  /// Whole pages of the application's memory.
  struct Pages {
    std::uint64_t address;
    std::uint64_t bytes;
  };

  /// Gives pages of zeros back to the kernel, under the conditions of door::Op::kDropPages, which
  /// process::drop_zero_pages sees to. The bytes that went; on failure it may be some of them.
  Result<std::uint64_t> drop_pages(std::span<const Pages> pages, Milliseconds deadline = kPatience);

  /// Marks whole mappings for huge pages, which changes nothing that can be read. kNotFound if the
  /// kernel has none, or an address is not mapped.
  Status use_huge_pages(std::span<const Pages> pages, Milliseconds deadline = kPatience);

 private:
  struct Exchange;

  Door(pid_t pid, UniqueFd process, UniqueFd lock, UniqueFd socket);

  Status send(const door::DoorRequest& request, std::span<const int> descriptors,
              std::chrono::steady_clock::time_point deadline);
  Result<Exchange> receive(std::uint32_t sequence, std::chrono::steady_clock::time_point deadline);
  Result<Exchange> ask(door::DoorRequest& request, std::span<const int> descriptors,
                       Milliseconds deadline);
  Result<std::vector<door::DoorEntry>> inventory_once(Milliseconds deadline, bool* torn);
  door::DoorRequest make_request(door::Op op);
  Result<std::uint64_t> advise(door::Op op, std::span<const Pages> pages, Milliseconds deadline,
                               const char* doing);
  Error ended() const;
  Error silent(const char* doing, Milliseconds deadline) const;

  pid_t pid_;
  UniqueFd process_;  ///< pidfd
  UniqueFd lock_;     ///< the card's memfd, locked against other agents
  UniqueFd socket_;
  std::uint64_t session_;
  std::uint32_t sequence_;
};

}  // namespace gcr::agent
