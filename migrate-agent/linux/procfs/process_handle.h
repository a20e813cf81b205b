// A handle of a process that cannot be confused with a later process with the same PID: a pidfd,
// and the start time, compared after the pidfd was opened. Once a process is claimed, everything
// that is done to it uses such a handle; a PID alone is for messages and for /proc.
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

/// A process. Copies share the pidfd. Any thread may use its own copy.
class Process {
 public:
  /// Time within which the kernel and the driver free the resources of any process.
  static constexpr std::chrono::milliseconds kDeathLimit = std::chrono::seconds(60);

  /// Opens the process that has this PID now. kNotFound if there is none.
  static Result<Process> open(pid_t pid);

  /// Opens the process with this PID that started at `start_time` (field 22 of /proc/PID/stat).
  /// kNotFound if it is gone, also if another process has its PID.
  static Result<Process> open(pid_t pid, std::uint64_t start_time);

  pid_t pid() const { return pid_; }
  std::uint64_t start_time() const { return start_time_; }
  int pidfd() const { return pidfd_->get(); }

  /// Returns whether the process has ended, reaped or not.
  bool has_ended() const;

  /// Returns whether the process has ended or runs no more of its own code: all its threads have a
  /// pending SIGKILL or are ending.
  bool is_ending() const;

  /// Waits until the process has ended; false if it has not within `patience`.
  bool ends_within(std::chrono::milliseconds patience) const;

  /// Sends a signal. kNotFound if the process was reaped; a process that has its PID then is not
  /// signalled.
  Status send(int signal_number) const;

  /// Blocks until a process that was killed has ended. kTimeout after `limit`: a tracer may keep it
  /// for ever.
  Status wait_until_ended(std::chrono::milliseconds limit = kDeathLimit) const;

 private:
  Process(pid_t pid, std::uint64_t start_time, UniqueFd pidfd);

  pid_t pid_;
  std::uint64_t start_time_;
  std::shared_ptr<const UniqueFd> pidfd_;
};

/// Waits until one of these processes (pidfds with POLLIN) has ended; false if none has within
/// `patience`, and at once if there are none.
bool any_ends_within(std::span<pollfd> pidfds, std::chrono::milliseconds patience);

/// Opens the process and all its descendants, the process first. A process whose PID may have been
/// reused before its pidfd was opened counts only if it is still a descendant.
std::vector<Process> open_tree(const Process& root);

}  // namespace gcr::procfs
