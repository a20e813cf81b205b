#include "migrate-agent/migration/destination/room.h"

#include <algorithm>

#include "src/base/units.h"

namespace gcr::migration {
namespace {

constexpr unsigned kImageSlots = 64;
/// Room for images beyond what the source expects, at first and for each extension.
constexpr std::uint64_t kImageStepBytes = 64 * kMiB;
/// Overhead of the tmpfs: CRIU's logs, and the rest of each file's last page.
constexpr std::uint64_t kImageOverheadBytes = 64 * kMiB;

}  // namespace

Room::Room(std::uint64_t image_bytes) : image_room_(image_bytes + kImageStepBytes) {}

Result<std::unique_ptr<Room>> Room::reserve(const worker::Config& config,
                                            std::uint64_t image_bytes) {
  std::unique_ptr<Room> room(new Room(image_bytes));
  GCR_ASSIGN(room->memory_,
             hostmem::MemoryReservation::create(hostmem::reservations_in(config.runtime_dir)));
  // The process's own memory exists twice during the restore: as images and as pages.
  GCR_TRY(room->memory_->add({.ordinary_bytes = room->image_room_ + image_bytes}));
  return room;
}

Result<std::uint64_t> Room::more_image_room(std::uint64_t bytes) {
  const std::uint64_t step = std::max(bytes, kImageStepBytes);
  GCR_TRY(memory_->add({.ordinary_bytes = step}));
  image_room_ += step;
  GCR_TRY(image_memory_->resize(image_room_ + kImageOverheadBytes));
  return image_room_;
}

Status Room::open_images(const std::array<std::byte, 32>& secret) {
  GCR_ASSIGN(image_memory_, images::ImageMemory::create(image_room_ + kImageOverheadBytes));
  GCR_ASSIGN(images_, images::ImageStore::create(
                          image_memory_->path(), kImageSlots, image_room_, secret,
                          [this](std::uint64_t bytes) { return more_image_room(bytes); }));
  return {};
}

Status Room::complete(const std::vector<images::ImageFile>& files) {
  GCR_TRY(images_->complete(files));
  return memory_->taken({.ordinary_bytes = image_room_});
}

}  // namespace gcr::migration
