// The mount namespace of a process, whose mounts are that process's to make: who it is, and whether
// a program of ours may work inside it.
#pragma once

#include <sys/types.h>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::procfs {

/// A mount namespace, held: no other gets its identity while this lives. Move-only.
class MountNamespace {
 public:
  /// That of `pid`. kNotFound if the process is gone.
  static Result<MountNamespace> of(pid_t pid);

  /// For setns(2).
  int fd() const { return fd_.get(); }

  bool is_that_of(pid_t pid) const;

  /// Success if its mounts are made by users of our own user namespace alone: those of another one
  /// make namespaces without any privilege here. Else kRefused.
  Status check_owner() const;

 private:
  explicit MountNamespace(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
};

/// Success if CRIU can trust what it reads in a mount namespace, as seen by `pid`, a process in it:
/// /proc is a whole procfs of the PID namespace of `pid` with nothing mounted in it, and CRIU's
/// cache of the kernel's features is the host's or missing. Else kRefused, with a sentence that
/// says what is wrong. Holds only for the moment: a process that may mount there can change it.
Status check_view(pid_t pid);

/// The same of what CRIU's plugin for AMD's GPUs reads there: /sys is a whole sysfs as far as it
/// reads it, /dev/kfd and /dev/dri are the kernel's devices, and libdrm's table of names is the
/// host's or missing.
Status check_view_of_gpus(pid_t pid);

}  // namespace gcr::procfs
