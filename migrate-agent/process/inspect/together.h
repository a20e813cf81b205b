// The processes that move together, and who else has their pipes, sockets and files.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "migrate-agent/linux/procfs/container.h"
#include "migrate-agent/linux/procfs/directory.h"
#include "src/base/result.h"

namespace gcr::process {

/// Knows who held what when it was made. Immutable: any thread.
class Together {
 public:
  enum class Agents { kCounted, kSkipped };

  /// `container`: the one that they are in, if its init is gcr-init.
  explicit Together(std::set<pid_t> pids, std::optional<procfs::Container> container = {});

  /// Whether it is one of them, or below one of them now: born since they were listed.
  bool contains(pid_t pid) const;

  /// Whether one of them has a pipe or socket, by its link in /proc: "pipe:[1]", "/run/fifo".
  bool holds(const std::string& link) const;

  /// Another process that has it and has not ended since, 0 if none does. Agents may be skipped:
  /// they hold their end of a door.
  pid_t outsider(const std::string& link, Agents agents = Agents::kCounted) const;

  /// None: the processes are in no container.
  const std::optional<procfs::Container>& container() const { return container_; }

  /// The process whose network, UTS, IPC and cgroup namespaces they have to be in: the init of the
  /// container, or else the caller.
  pid_t in_place_of() const;

  /// Whether it is a standard stream of the container: at the destination it is that container's.
  bool is_stream(const std::string& link) const { return streams_.contains(link); }

  /// Runs `work` where absolute paths, addresses and System V objects are those of the processes.
  Status in_place(const std::function<Status()>& work) const;

 private:
  std::set<pid_t> pids_;
  std::optional<procfs::Container> container_;
  std::set<std::string> streams_;
  std::multimap<std::string, pid_t> holders_;
};

/// The pipes among the standard streams of a container's init, by their numbers.
std::map<int, std::string> streams_of(const procfs::Container& container);

/// Agents' processes run our own program, or another build of it in the same directory.
bool is_agent_or_gone(pid_t pid);

/// For each of `files` that a process outside of `members` has open or mapped, one such process.
/// Agents are none: they hold files for moments. Looks at every process, unless `files` is empty.
std::map<procfs::FileId, pid_t> outsiders(const std::set<procfs::FileId>& files,
                                          const std::set<pid_t>& members);

}  // namespace gcr::process
