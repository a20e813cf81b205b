// Which migrations have brought their jobs. A container receives once: the agent notes the key of a
// migration when its job is about to run in the container. If the engine starts that container
// again, it starts its program, because no job comes a second time. Until then a container that is
// started again waits again.
//
// A note is an empty file that has the key as its name, in a directory that only root may write to.
#pragma once

#include <filesystem>
#include <string>

#include "src/base/result.h"

namespace gcr::container {

/// Returns whether the job of the migration with this key has come. kRefused if another user may
/// write to the directory.
Result<bool> has_received(const std::filesystem::path& directory, const std::string& key);

}  // namespace gcr::container
