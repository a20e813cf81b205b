// Containers whose init is gcr-init (container/init_main.cc): finding them, working inside them,
// and giving orders to the init. Everything in a container belongs to its owner and is hostile;
// the kernel's word alone counts.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "migrate-agent/linux/procfs/process_handle.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::procfs {

/// Any thread may use its own copy.
class Container {
 public:
  /// The container whose job has this root: the root's parent is the first process of the root's
  /// PID namespace, and its program has the path of gcr-init. None if there is no such container.
  /// kNotFound if the root is gone.
  static Result<std::optional<Container>> of_root(pid_t root);

  /// The container of a known init.
  explicit Container(Process init) : init_(std::move(init)) {}

  const Process& init() const { return init_; }

  /// Whether the root of its job says that the filters which it was started with allow
  /// userfaultfd(2). An untrue answer of the root harms its own job alone.
  static bool allows_userfaultfd(pid_t root);

  /// Success if the init is the first process of a PID namespace below the caller's, in our user
  /// namespace, executes this host's gcr-init, which is the file `program`, and waits with `key`;
  /// else kRefused.
  Status check_waits(const std::string& program, const std::string& key) const;

  /// Runs `work` in a thread of its own inside the mount, network and IPC namespaces of the
  /// container: absolute paths, addresses and ports are the container's. /proc is too: use
  /// own_proc().
  Status inside(const std::function<Status()>& work) const;

  /// Returns the PIDs and thread ids that are in use in the container, as it numbers them.
  std::set<pid_t> used_pids() const;

  /// Gives an order: the PID of the job's root in the container, or container::kMoved. Waits until
  /// the init has taken it. Success if the init has ended; kTimeout after 10 s.
  Status order(int value) const;

 private:
  Process init_;
};

}  // namespace gcr::procfs
