// The host memory of a migration at its destination. It is reserved before it is allocated, so that
// two migrations that do not fit together do not both run out of memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "migrate-agent/linux/hostmem/memory_reservation.h"
#include "migrate-agent/transfer/images/scratch.h"
#include "migrate-agent/transfer/images/store.h"
#include "migrate-agent/worker/config/config.h"
#include "src/base/result.h"

namespace gcr::migration {

/// The reservation of host memory for VRAM and images, and the images' file system. All methods
/// block; one thread at a time, but lanes may write to images() concurrently.
class Room {
 public:
  /// Reserves memory for images of about `image_bytes`, and for the process itself.
  static Result<std::unique_ptr<Room>> reserve(const worker::Config& config,
                                               std::uint64_t image_bytes);

  /// The reservation, also for VRAM to land in.
  hostmem::MemoryReservation& memory() { return *memory_; }

  /// Creates the images' file system and buffer. `secret` is the migration's.
  Status open_images(const std::array<std::byte, 32>& secret);

  /// The store of images. Only after open_images().
  images::ImageStore& images() { return *images_; }
  std::filesystem::path image_directory() const { return image_memory_->path(); }

  /// Verifies and completes the images, when no more data arrives.
  Status complete(const std::vector<images::ImageFile>& files);

 private:
  explicit Room(std::uint64_t image_bytes);

  Result<std::uint64_t> more_image_room(std::uint64_t bytes);

  std::uint64_t image_room_;  ///< bytes reserved for images
  std::unique_ptr<hostmem::MemoryReservation> memory_;
  std::optional<images::ImageMemory> image_memory_;
  std::unique_ptr<images::ImageStore> images_;
};

}  // namespace gcr::migration
