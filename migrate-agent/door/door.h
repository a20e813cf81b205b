// The agent's side of the door (preload/door_protocol.h): how it finds the preload library in an
// application, and the requests that it sends.
//
// A Door belongs to one thread at a time; methods block, none longer than its deadline. After an
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

/// A buffer and a descriptor that owns it.
struct ExportedBuffer {
  door::DoorEntry entry;
  UniqueFd descriptor;
};

class Door {
 public:
  using Milliseconds = std::chrono::milliseconds;
  static constexpr Milliseconds kPatience = std::chrono::seconds(30);
  static constexpr Milliseconds kLockPatience = std::chrono::seconds(1);

  /// `pid` is a PID in the caller's PID namespace; the process may be in a namespace below. Changes
  /// nothing in the process. kNotFound: there is no such process, it does not run under the preload
  /// library, or it has not initialised CUDA (the message tells which). kPermissionDenied: the
  /// caller may not ptrace it. kUnavailable: another agent has the door, and does not release it
  /// within `patience`. kUnsupported: another protocol version.
  static Result<Door> open(pid_t pid, Milliseconds patience = kLockPatience);

  Door(Door&&) noexcept = default;
  Door& operator=(Door&&) noexcept = default;

  pid_t pid() const { return pid_; }

  /// Counts, blockers, the state of the gate.
  Result<door::Summary> hello(Milliseconds deadline = kPatience);

  /// All buffers in the order of ids, as of one moment.
  Result<std::vector<door::DoorEntry>> inventory(Milliseconds deadline = kPatience);

  /// One descriptor per id, in the order of `ids`. The application keeps its memory. On failure
  /// nothing is exported.
  Result<std::vector<ExportedBuffer>> export_buffers(std::span<const std::uint64_t> ids,
                                                     Milliseconds deadline = kPatience);

  /// Holds back the application's calls and waits until its GPUs are idle. kTimeout says what
  /// prevented it; the gate is then open again. The gate opens by itself `lease` after the last
  /// request (0: never), unless the application is detached.
  Status close_gate(Milliseconds timeout, Milliseconds lease);

  /// The application unmaps all its buffers. Needs a closed gate, and descriptors of all buffers,
  /// exported through this Door since it was opened and since the last attach. On failure
  /// everything is mapped as before, except with kDataLoss: then it is detached, and offer and
  /// attach bring it back.
  Status detach(Milliseconds deadline = kPatience);

  /// Hands descriptors to a detached application, any number of times. The caller's copies are
  /// closed even on failure.
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
  /// the caller ensures (migrate-agent/memory/zero_pages.h). Gives the number of bytes; on failure
  /// some pages may be gone.
  Result<std::uint64_t> drop_pages(std::span<const Pages> pages, Milliseconds deadline = kPatience);

  /// Marks whole mappings for huge pages, which does not change their content. kNotFound if the
  /// kernel has no huge pages, or an address is not mapped.
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
  UniqueFd lock_;     ///< the door's memfd, locked against other agents
  UniqueFd socket_;
  std::uint64_t session_;
  std::uint32_t sequence_;
};

}  // namespace gcr::agent
