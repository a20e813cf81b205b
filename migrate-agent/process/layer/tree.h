// What of the file system a container has for itself, and moves with it: the writable layer of its
// overlay, and its private tmpfs mounts. Everything else that is mounted in it is a volume, which
// the caller compares or refuses. Any thread; blocking.
//
// The descriptors keep the mounts alive: close them before the engine removes the container.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::layer {

/// Move-only.
struct Tree {
  std::string point;  ///< where the container has it: "/", "/tmp"
  UniqueFd view;      ///< its root directory as the container sees it; all content is read there
  UniqueFd upper;     ///< of an overlay, the upper directory; only scan() reads it
  /// Prefix of the attributes that overlayfs keeps in `upper`; "" of a tmpfs.
  std::string_view overlay_prefix;

  bool is_overlay() const { return !overlay_prefix.empty(); }
};

/// A mount that is not the container's alone, or of another type.
struct Volume {
  std::string point, type, source;
  std::string root;    ///< the mounted directory or file of the file system
  std::string device;  ///< MAJOR:MINOR of the file system on this host
  bool read_only = false;
};

struct Trees {
  std::vector<Tree> trees;  ///< by point; without "/" if the container's root is read-only
  std::vector<Volume> volumes;
};

/// Finds the trees of the container whose init this is. Nothing in /proc, /sys and /dev is one, nor
/// a volume, except /dev/shm if the engine has mounted it for the container. kUnsupported if the
/// root is writable, and no overlay that this host has mounted with this upper directory.
Result<Trees> trees_of(pid_t init);

/// Whether a file of the container is carried: it is in a tmpfs tree, or the container has made or
/// changed it in the layer of its root. Not known of files in directories of the image that were
/// renamed: false.
bool is_carried(const Trees& trees, const std::string& path);

/// The tree at that point; null if there is none.
const Tree* find(const Trees& trees, std::string_view point);

}  // namespace gcr::layer
