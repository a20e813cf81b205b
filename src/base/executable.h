// Path of the running program, to find files that are installed in the same directory.
#pragma once

#include <filesystem>

#include "src/base/result.h"

namespace gcr {

/// Returns the file of the running program, also if a dynamic loader was started with it by hand
/// (then /proc/self/exe is the loader). kNotFound if /proc does not say.
Result<std::filesystem::path> executable_path();

}  // namespace gcr
