// The host memory that a migration takes at its destination. It is reserved before it is allocated,
// so that two migrations that do not fit together do not both run out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "migrate-agent/linux/hostmem/memory_reservation.h"
#include "migrate-agent/transfer/images/image_memory.h"
#include "migrate-agent/transfer/images/store.h"
#include "migrate-agent/worker/config/config.h"
#include "src/base/result.h"

namespace gcr::migration {

/// What VRAM lands in, and CRIU's images. Everything blocks; one thread at a time, but lanes
/// may land in images().
class Room {
 public:
  /// Reserves memory for images of about `image_bytes` and for the process that is restored from
  /// them.
  static Result<std::unique_ptr<Room>> reserve(const worker::Config& config,
                                               std::uint64_t image_bytes);

  /// Reserves memory for VRAM to land in.
  Status add_landing(std::uint64_t bytes) { return memory_->add(landing(bytes)); }

  /// This much of it is allocated now.
  Status landing_taken(std::uint64_t bytes) { return memory_->taken(landing(bytes)); }

  /// Makes the images' file system and what lands in it. `secret` is the migration's.
  Status open_images(const std::array<std::byte, 32>& secret);

  /// After open_images().
  images::ImageStore& images() { return *images_; }
  std::filesystem::path image_directory() const { return image_memory_->path(); }

  /// All images are there, and nothing lands any more.
  Status complete(const std::vector<images::ImageFile>& files);

 private:
  Room(const worker::Config& config, std::uint64_t image_bytes);

  hostmem::Memory landing(std::uint64_t bytes) const {
    return hostmem::needed_for_landing(hugepages_, bytes);
  }
  Result<std::uint64_t> more_image_room(std::uint64_t bytes);

  hostmem::HugepagePolicy hugepages_;
  std::uint64_t image_room_;  ///< what is reserved for images
  std::unique_ptr<hostmem::MemoryReservation> memory_;
  std::optional<images::ImageMemory> image_memory_;
  std::unique_ptr<images::ImageStore> images_;
};

}  // namespace gcr::migration
