// Files as preflight compares them.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "proto/control.pb.h"

namespace gcr::process {

/// One mapping of /proc/PID/maps that has a name.
struct Mapping {
  std::string path;      ///< without " (deleted)"
  std::uint64_t device;  ///< as makedev gives it
  std::uint64_t inode;
  bool deleted;
  bool shared;    ///< some part of it with MAP_SHARED
  bool writable;  ///< some part of it
};

/// The named mappings of a process, each path once. Empty if it is gone.
std::vector<Mapping> named_mappings(pid_t pid);

/// Size and build-id, or SHA-256, of the regular file `path`, opened as `real_path` (the same file
/// as the caller sees it). False if it is no regular file or cannot be read.
bool describe_mapped_file(const std::string& path, const std::string& real_path,
                          proto::FileFact& fact);

}  // namespace gcr::process
