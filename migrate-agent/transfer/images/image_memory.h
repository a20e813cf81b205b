// Where a migration's images are kept at the destination.
#pragma once

#include <cstdint>
#include <filesystem>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::images {

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
