// The mounts of a process, and its mount namespace. The process controls its mounts, so this checks
// whether a program of ours may work inside it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::procfs {

/// A mount namespace, held open: its identity is not reused while this lives. Move-only.
class MountNamespace {
 public:
  /// Opens the mount namespace of `pid`. kNotFound if the process is gone.
  static Result<MountNamespace> of(pid_t pid);

  /// Returns the descriptor, for setns(2).
  int fd() const { return fd_.get(); }

  bool is_that_of(pid_t pid) const;

  /// Succeeds if only users of our own user namespace can have made its mounts; users of another
  /// one create mount namespaces without privileges here. Else kRefused.
  Status check_owner() const;

 private:
  explicit MountNamespace(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
};

/// A mount, as a line of /proc/PID/mountinfo has it. Names are plain; options are escaped.
struct Mount {
  std::uint64_t parent = 0;
  std::string device, root, point;
  std::string type, source;
  std::string options;     ///< of the file system: option_of() reads them
  bool read_only = false;  ///< the mount, or the file system
};

/// The mounts that a process sees, by the kernel's numbers. Empty if it is gone.
using MountTable = std::map<std::uint64_t, Mount>;
MountTable mounts_of(pid_t pid);

/// The value of an option in Mount::options: "" if it has none; nothing if the option is not there.
std::optional<std::string> option_of(const Mount& mount, std::string_view name);

/// Succeeds if CRIU can trust what it reads in a mount namespace, as seen by `pid`, a process in
/// it: /proc is a whole procfs of the PID namespace of `pid` with nothing mounted in it, and CRIU's
/// cache of kernel features is the host's or missing. Else kRefused, with the reason. Valid only
/// for the moment: a process that may mount there can change it.
Status check_view(pid_t pid);

/// Succeeds if CRIU's plugin for AMD GPUs can trust what it reads there: /sys is a whole sysfs in
/// the parts that it reads, /dev/kfd and /dev/dri are the kernel's devices, and libdrm's table of
/// names is the host's or missing. Else kRefused, like check_view().
Status check_view_of_gpus(pid_t pid);

}  // namespace gcr::procfs
