// Access to directories that users write to, such as /dev/shm, without following any link.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <utility>

#include "src/base/unique_fd.h"

namespace gcr::procfs {

/// Identity of a file on this host.
using FileId = std::pair<dev_t, ino_t>;

/// Opens the root directory of `pid`; 0: of the caller. None, with errno set, if the process is
/// gone.
UniqueFd hold_root(pid_t pid);

/// Opens the directory at this absolute path below `root`, with the rights of the calling thread.
/// No part of the path may be a symbolic link. None, with errno set, if there is no such directory.
UniqueFd open_directory(const std::string& path, const UniqueFd& root);

/// Opens a directory as `pid` sees it; 0: as the caller does.
UniqueFd open_directory(const std::string& path, pid_t pid = 0);

/// Returns the regular files of a directory, by inode number; only a part if it has more than
/// 65,536 entries.
std::multimap<ino_t, std::string> regular_files(const UniqueFd& directory);

/// Returns the identity of the file with this name; {0, 0}, with errno set, if there is none.
/// Follows no link.
FileId file_at(const UniqueFd& directory, const std::string& name);

/// Returns the identity of an open file, or of the file at a path, through links; {0, 0}, with
/// errno set, if there is none.
FileId id_of(const UniqueFd& file);
FileId id_of(const std::string& path);

}  // namespace gcr::procfs
