#include "transport/rdma/window_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "transport/lane_thread.h"
#include "transport/rdma/messages.h"

namespace gcr::transport::rdma {

WindowPart::WindowPart(std::span<std::byte> bytes, std::shared_ptr<const UniqueFd> wake)
    : bytes_(bytes), wake_(std::move(wake)), taken_(bytes.size() / kPlaceBytes) {}

Result<Place> WindowPart::claim(std::uint64_t number, std::uint64_t length_bytes,
                                std::uint64_t request) {
  const std::lock_guard lock(mutex_);
  if (number >= taken_.size() || taken_[number] || length_bytes > kPlaceBytes) {
    return Error(Code::kProtocol,
                 fmt::format("the sender wrote {} bytes into place {} of {}, which it may not use "
                             "now",
                             length_bytes, number, taken_.size()));
  }
  taken_[number] = true;
  return Place(bytes_.subspan(number * kPlaceBytes, length_bytes),
               [part = shared_from_this(), number, request] { part->release(number, request); });
}

void WindowPart::release(std::size_t number, std::uint64_t request) {
  {
    const std::lock_guard lock(mutex_);
    taken_[number] = false;
    released_.push_back(request);
  }
  wake_up(*wake_);
}

std::vector<std::uint64_t> WindowPart::take_released(std::size_t most) {
  const std::lock_guard lock(mutex_);
  const auto end =
      released_.begin() + static_cast<std::ptrdiff_t>(std::min(most, released_.size()));
  std::vector<std::uint64_t> requests(released_.begin(), end);
  released_.erase(released_.begin(), end);
  return requests;
}

void WindowParts::open(std::span<std::byte> bytes, unsigned lanes) {
  const std::lock_guard lock(mutex_);
  const std::size_t places = std::min<std::size_t>(bytes.size() / kPlaceBytes / lanes, kMaxDepth);
  part_bytes_ = places * kPlaceBytes;
  bytes_ = bytes;
  parts_.resize(lanes);
}

std::shared_ptr<WindowPart> WindowParts::claim(std::shared_ptr<const UniqueFd> wake) {
  const std::lock_guard lock(mutex_);
  const auto free = std::ranges::find_if(parts_, [](const auto& part) { return part.expired(); });
  if (free == parts_.end()) return nullptr;
  const auto number = static_cast<std::size_t>(free - parts_.begin());
  auto part = std::make_shared<WindowPart>(bytes_.subspan(number * part_bytes_, part_bytes_),
                                           std::move(wake));
  *free = part;
  return part;
}

}  // namespace gcr::transport::rdma
