// The facts by which files are compared.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "proto/control.pb.h"
#include "src/base/unique_fd.h"

namespace gcr::process {

/// What the kernel appends to the path of a file that has been removed.
inline constexpr std::string_view kDeleted = " (deleted)";

/// One mapping of /proc/PID/maps that has a name.
struct Mapping {
  std::string path;      ///< without " (deleted)"
  std::string range;     ///< its name in /proc/PID/map_files, of the first one
  std::uint64_t device;  ///< as makedev gives it
  std::uint64_t inode;
  bool deleted;
  bool shared;    ///< some part of it with MAP_SHARED
  bool writable;  ///< some part of it
};

/// The named mappings of a process, each file once: those with `with` in their path. Empty if it is
/// gone.
std::vector<Mapping> named_mappings(pid_t pid, std::string_view with = "/");

/// What of a regular file's content is compared.
struct WantedContent {
  bool any = false;     ///< size, build-id and digest; else none of them
  bool mapped = false;  ///< without a build-id larger ones are digested too
};

/// Describes the file that is held, with its `status`. It is opened only if it is a regular file.
/// Digests are cached until it changes.
void describe_file(const std::string& path, const UniqueFd& held, const struct stat& status,
                   WantedContent content, proto::FileFact& fact);

}  // namespace gcr::process
