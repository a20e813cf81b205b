// How both processes of gcr-init treat signals and children: all signals are blocked and taken one
// by one, and every child is reaped.
#pragma once

#include <signal.h>
#include <sys/types.h>

namespace gcr::container {

/// Blocks all signals of this process. A child inherits that.
class Signals {
 public:
  Signals();

  /// Waits for the next signal. Of several it returns that with the lowest number first.
  siginfo_t take() const;

  /// Takes a signal of `set` that is pending now; false if there is none.
  static bool take_pending(const sigset_t& set, siginfo_t& taken);

  /// Restores the mask and the disposition of SIGCHLD that this process was started with.
  void restore() const;

 private:
  sigset_t all_;
  sigset_t mask_;
  struct sigaction child_;  // a SIGCHLD that is ignored would hide statuses
};

/// Sends a signal that was taken to another process, with its value if it has one.
void pass_on(const siginfo_t& taken, pid_t to);

/// A child that has ended.
struct Ended {
  pid_t pid = 0;
  int status = 0;  ///< as an engine reports it: the exit status, or 128 plus the signal
};

/// Reaps a child that has ended; false if none has.
bool reap(Ended& ended);

}  // namespace gcr::container
