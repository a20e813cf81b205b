// Which threads are in a domain of Landlock. Nothing shows it but what such a thread may not do: to
// look at a process outside of the domain, even one of its own user (ptrace access, READ).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "migrate-agent/criu/threads/thread_calls.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {

/// The real user and group, which count for an access by a system call.
using Owner = std::pair<uid_t, gid_t>;

/// Of a thread, by the lines of its status in /proc.
Owner owner_of(const std::map<std::string, std::string>& status);

/// Processes that are there to be looked at, one for each user and group that threads have. They
/// end with this object, and with its process.
class Bystanders {
 public:
  /// For threads of a process, which sees them in its PID namespace.
  explicit Bystanders(pid_t neighbour) : neighbour_(neighbour) {}
  Bystanders(const Bystanders&) = delete;
  Bystanders& operator=(const Bystanders&) = delete;
  ~Bystanders();

  /// Starts those that are needed for threads of these. None where the kernel has no Landlock. Not
  /// in a process of run_apart().
  Status prepare(const std::set<Owner>& owners);

  /// The call that tells whether the thread that makes it is in a domain; none if no thread can be.
  std::optional<ThreadCall> question(const Owner& of_thread) const;

  /// By what the kernel returned.
  static Result<bool> is_in_domain(std::int64_t answer);

 private:
  struct Bystander {
    pid_t pid = 0;     ///< as the caller sees it
    pid_t inside = 0;  ///< as the process sees it
    UniqueFd lifeline;
  };
  Result<Bystander> start(uid_t uid, gid_t gid) const;

  const pid_t neighbour_;
  std::map<Owner, Bystander> started_;
};

/// The threads of a running process that are in a domain, among those that can have entered one by
/// themselves: with no_new_privs or CAP_SYS_ADMIN. Each is stopped for some microseconds. No
/// other tracer may have the process meanwhile. What cannot be told is left out.
std::vector<pid_t> threads_in_landlock(pid_t pid);

}  // namespace gcr::criu
