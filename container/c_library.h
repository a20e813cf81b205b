// The C library of an image. Images may be hostile: no link leads out of the image, only regular
// files are opened, reads are bounded, and no offset or length in a file is trusted. A file that
// claims to be another version deceives only its own container.
#pragma once

#include <filesystem>

#include "src/base/result.h"

namespace gcr::container {

/// The oldest GNU C library, 2.N, in which the preload library can be loaded.
inline constexpr unsigned kOldestMinor = 28;

/// Returns N of the GNU C library 2.N of the image below `root`, for programs of this machine's
/// architecture. kNotFound if the image has none, kUnsupported if it cannot be recognised; the
/// message is a clause about the image.
Result<unsigned> c_library_minor(const std::filesystem::path& root);

/// Fails, with a clause about the image, if the preload library cannot be loaded in it.
Status check_c_library(const std::filesystem::path& root);

}  // namespace gcr::container
