// Where the running program is, to find what is installed beside it.
#pragma once

#include <filesystem>

#include "src/base/result.h"

namespace gcr {

/// The file of the running program, even if it was started through a dynamic loader by hand (then
/// /proc/self/exe is the loader). kNotFound if /proc does not tell.
Result<std::filesystem::path> executable_path();

}  // namespace gcr
