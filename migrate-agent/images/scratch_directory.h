// A directory for the time of one migration.
#pragma once

#include <filesystem>
#include <utility>

#include "src/base/result.h"

namespace gcr::images {

/// A directory that is removed with everything in it when its owner is destroyed. Move-only.
class ScratchDirectory {
 public:
  /// Creates `path` (and its parents), readable by root alone. kIo if it exists.
  static Result<ScratchDirectory> create(const std::filesystem::path& path);
  ScratchDirectory(ScratchDirectory&& other) noexcept
      : path_(std::exchange(other.path_, std::filesystem::path{})) {}
  ScratchDirectory& operator=(ScratchDirectory&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~ScratchDirectory();
  const std::filesystem::path& path() const { return path_; }

 private:
  explicit ScratchDirectory(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

}  // namespace gcr::images
