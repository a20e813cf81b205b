#include "transport/landing_window.h"

#include <fmt/format.h>

namespace gcr::transport {

Status LandingWindow::check(unsigned lanes) const {
  if (places() >= lanes && places() > 0 && on_arrived) return {};
  return Error(Code::kInvalidArgument,
               fmt::format("a landing window of {} is too small for {} lanes: each needs {}",
                           format_bytes(bytes.size()), lanes, format_bytes(kPlaceBytes)));
}

PlacePool::PlacePool(std::span<std::byte> window) {
  for (std::size_t end = window.size() / kPlaceBytes * kPlaceBytes; end > 0; end -= kPlaceBytes) {
    free_.push_back(&window[end - kPlaceBytes]);
  }
}

Result<Place> PlacePool::take(std::uint64_t length_bytes) {
  std::unique_lock lock(mutex_);
  place_released_.wait(lock, [this] { return closed_ || !free_.empty(); });
  if (closed_) return Error(Code::kCancelled, "the landing window is closed");
  std::byte* const at = free_.back();
  free_.pop_back();
  return Place({at, length_bytes}, [pool = shared_from_this(), at] {
    const std::lock_guard guard(pool->mutex_);
    pool->free_.push_back(at);
    pool->place_released_.notify_one();
  });
}

void PlacePool::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  place_released_.notify_all();
}

}  // namespace gcr::transport
