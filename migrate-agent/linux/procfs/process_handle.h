// A process that cannot be mistaken for a later one with the same PID: a pidfd, and the start time,
// compared after the pidfd was opened. From its claim on everything that is done to a process uses
// such a handle; a PID alone is for messages and for /proc.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::procfs {

/// Copies share the pidfd. Any thread may use its own copy.
class Process {
 public:
  /// Enough for the kernel and the driver to give back what any process holds.
  static constexpr std::chrono::milliseconds kDeathLimit = std::chrono::seconds(60);

  /// The process that has this PID now. kNotFound if there is none.
  static Result<Process> open(pid_t pid);

  /// The process with this PID that started at `start_time` (field 22 of /proc/PID/stat). kNotFound
  /// if it is gone; another may have its PID.
  static Result<Process> open(pid_t pid, std::uint64_t start_time);

  pid_t pid() const { return pid_; }
  std::uint64_t start_time() const { return start_time_; }
  int pidfd() const { return pidfd_->get(); }

  /// True once it has ended, reaped or not.
  bool has_ended() const;

  /// True once it has ended, or runs no more code of its own: SIGKILL is pending for all of its
  /// threads, or they are ending.
  bool is_ending() const;

  /// Waits for its end; false if it has not ended within `patience`.
  bool ends_within(std::chrono::milliseconds patience) const;

  /// kNotFound if it has been reaped; a process that has its PID then is not signalled.
  Status send(int signal_number) const;

  /// For a process that was killed: blocks until it has ended. kTimeout after `limit`: a process
  /// that traces it may keep it for ever.
  Status wait_until_ended(std::chrono::milliseconds limit = kDeathLimit) const;

 private:
  Process(pid_t pid, std::uint64_t start_time, UniqueFd pidfd);

  pid_t pid_;
  std::uint64_t start_time_;
  std::shared_ptr<const UniqueFd> pidfd_;
};

/// Waits until one of the processes of these pidfds, each with POLLIN, has ended; false if none has
/// within `patience`, at once if there are none.
bool any_ends_within(std::span<pollfd> pidfds, std::chrono::milliseconds patience);

/// The process and all below it, the process first. A PID that was read before its pidfd was opened
/// counts only if it is still below the process.
std::vector<Process> open_tree(const Process& root);

}  // namespace gcr::procfs
