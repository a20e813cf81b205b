// The processes that move together, and who else has their pipes, sockets and files.
#pragma once

#include <sys/types.h>

#include <map>
#include <set>
#include <string>

#include "migrate-agent/linux/procfs/directory.h"

namespace gcr::process {

/// Knows who held what when it was made. Immutable: any thread.
class Together {
 public:
  enum class Agents { kCounted, kSkipped };

  explicit Together(std::set<pid_t> pids);

  /// Whether it is one of them, or below one of them now: born since they were listed.
  bool contains(pid_t pid) const;

  /// Whether one of them has a pipe or socket, by its link in /proc: "pipe:[1]", "/run/fifo".
  bool holds(const std::string& link) const;

  /// Another process that has it and has not ended since, 0 if none does. Agents may be skipped:
  /// they hold their end of a door.
  pid_t outsider(const std::string& link, Agents agents = Agents::kCounted) const;

 private:
  std::set<pid_t> pids_;
  std::multimap<std::string, pid_t> holders_;
};

/// Agents' processes run our own program, or another build of it in the same directory.
bool is_agent_or_gone(pid_t pid);

/// For each of `files` that a process outside of `members` has open or mapped, one such process.
/// Agents are none: they hold files for moments. Looks at every process, unless `files` is empty.
std::map<procfs::FileId, pid_t> outsiders(const std::set<procfs::FileId>& files,
                                          const std::set<pid_t>& members);

}  // namespace gcr::process
