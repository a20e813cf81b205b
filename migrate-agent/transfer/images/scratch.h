// What lasts as long as one migration: a directory, and a tmpfs for images at the destination.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <utility>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::images {

/// A directory that is removed with everything in it when its owner is destroyed, even if the
/// process has no free descriptor by then. Move-only.
class ScratchDirectory {
 public:
  /// Creates `path` (and its parents), readable by root alone. kIo if it exists.
  static Result<ScratchDirectory> create(const std::filesystem::path& path);
  ScratchDirectory(ScratchDirectory&& other) noexcept
      : path_(std::exchange(other.path_, std::filesystem::path{})),
        reserve_(std::move(other.reserve_)) {}
  ScratchDirectory& operator=(ScratchDirectory&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(reserve_, other.reserve_);
    return *this;
  }
  ~ScratchDirectory();
  const std::filesystem::path& path() const { return path_; }

 private:
  /// As many as the removal has open at a time: one for each level of directories.
  using Reserve = std::array<UniqueFd, 4>;

  ScratchDirectory(std::filesystem::path path, Reserve reserve)
      : path_(std::move(path)), reserve_(std::move(reserve)) {}

  std::filesystem::path path_;
  Reserve reserve_;
};

/// A tmpfs that is mounted nowhere: it is reached through this object and through descriptors of
/// its files, and is gone with the last of them, however their owners end. Move-only.
class ImageMemory {
 public:
  /// An empty one (0700) for up to `max_bytes`. Needs CAP_SYS_ADMIN.
  static Result<ImageMemory> create(std::uint64_t max_bytes);

  /// Changes its size. kIo if it holds more than that.
  Status resize(std::uint64_t max_bytes);

  /// A path for this process and, as long as they have its descriptor, its children.
  std::filesystem::path path() const;

 private:
  explicit ImageMemory(UniqueFd root) : root_(std::move(root)) {}
  UniqueFd root_;
};

}  // namespace gcr::images
