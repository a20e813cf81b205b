// Files below a directory that processes of a container write to. No symbolic link is followed and
// no mount point is crossed. Any thread; blocking.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <optional>
#include <set>
#include <string>

#include "src/base/unique_fd.h"

namespace gcr::layer {

/// Opens `path` below `directory`; "" is the directory itself. None, with errno set: EXDEV if it is
/// a mount point or below one, ELOOP if a symbolic link is in its place or in that of a parent.
UniqueFd open_beneath(const UniqueFd& directory, const std::string& path, int flags);

/// A directory, with O_PATH.
UniqueFd hold_directory(const UniqueFd& top, const std::string& path);

/// A file of any type with O_PATH, also a symbolic link itself. It has no effect on a device or a
/// FIFO.
UniqueFd hold_beneath(const UniqueFd& directory, const std::string& path);

/// Whether errno says that there is no such file, or none of that type: a process has removed or
/// replaced it.
bool is_gone(int error);

/// A name in a directory, or with "" the directory itself; none, with errno set, if it is not
/// there.
std::optional<struct statx> look(const UniqueFd& directory, const std::string& name);

/// To remove or to replace it would detach the mount in the container.
bool is_mount_point(const struct statx& status);

/// The names in a directory. None, with errno set; E2BIG if there are more than `most`.
std::optional<std::set<std::string>> names_in(const UniqueFd& directory, const std::string& path,
                                              std::size_t most);

/// The name by which calls without a variant for descriptors reach an open file.
std::string link_of(const UniqueFd& held);

}  // namespace gcr::layer
