// Removing files of a destination container. Mount points, and the directories that they are in,
// stay: removing one would detach the mount. Any thread; blocking.
#pragma once

#include <string>

#include "migrate-agent/process/layer/rules.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::layer {

/// Removes all that is in the directory at `path` below `top`, without following links. Returns
/// whether it is empty then; a note names each mount point that is in it.
Result<bool> empty_directory(const UniqueFd& top, const std::string& path, Notes& notes);

/// The same, and then the directory itself. Returns whether it is gone.
Result<bool> remove_directory(const UniqueFd& top, const std::string& path, Notes& notes);

}  // namespace gcr::layer
