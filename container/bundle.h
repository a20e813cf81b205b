// The file of a container's configuration in its bundle.
#pragma once

#include <filesystem>
#include <string>

#include "src/base/result.h"

namespace gcr::container {

/// Reads all of a file or of standard input (`fd`), at most 64 MiB.
Result<std::string> read_all(int fd);
Result<std::string> read_file(const std::filesystem::path& path);

/// Replaces a file as a whole; keeps its mode and its owner. On failure the file is as it was.
Status replace_file(const std::filesystem::path& path, const std::string& text);

/// Writes all of `text`.
Status write_all(int fd, const std::string& text);

}  // namespace gcr::container
