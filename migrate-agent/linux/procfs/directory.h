// Directories that users write to, such as /dev/shm: reached without following any link, and read.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <utility>

#include "src/base/unique_fd.h"

namespace gcr::procfs {

/// Which file it is on this host.
using FileId = std::pair<dev_t, ino_t>;

/// The root directory of `pid`; 0: of the caller. None, with errno set, if the process is gone.
UniqueFd hold_root(pid_t pid);

/// Holds the directory at this absolute path below `root`, with the rights of the calling thread.
/// No part of the path may be a symbolic link. None, with errno set, if there is no such directory.
UniqueFd open_directory(const std::string& path, const UniqueFd& root);

/// The same as `pid` sees it; 0: as the caller does.
UniqueFd open_directory(const std::string& path, pid_t pid = 0);

/// Its regular files, by inode number. Of a directory with more than 65,536 entries a part.
std::multimap<ino_t, std::string> regular_files(const UniqueFd& directory);

/// What has this name in the directory; {0, 0}, with errno set, if nothing has. Follows no link.
FileId file_at(const UniqueFd& directory, const std::string& name);

}  // namespace gcr::procfs
