// The landing window: a buffer that all regions without memory of their own share. It is cut into
// places. Each piece of a write lands in one place, which the receiver's owner releases when it has
// moved the bytes to their destination. The window may be much smaller than the regions.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "src/base/result.h"
#include "src/base/units.h"

namespace gcr::transport {

using RegionId = std::uint32_t;

/// The size of a place, and so the largest piece of a write that can land in a window.
inline constexpr std::uint64_t kPlaceBytes = kChunkBytes;

/// One claimed place of a window; its span covers the bytes that landed there. The destructor
/// releases the place, on any thread, even after the receiver was destroyed. Move-only.
class Place {
 public:
  Place(std::span<std::byte> bytes, std::function<void()> release)
      : bytes_(bytes), release_(std::move(release)) {}
  Place(Place&& other) noexcept
      : bytes_(other.bytes_), release_(std::exchange(other.release_, nullptr)) {}
  Place& operator=(Place&&) = delete;
  ~Place() {
    if (release_) release_();
  }

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
  std::function<void()> release_;
};

/// Called on the receiver's lane threads when bytes for `offset` of `region` are in `place`. Must
/// not wait for other places. Concurrency and errors are those of OnLanded.
using OnArrived = std::function<Status(RegionId region, std::uint64_t offset, Place place)>;

struct LandingWindow {
  std::span<std::byte> bytes;  ///< the places; mapped until the last one is released
  OnArrived on_arrived;

  std::size_t places() const { return bytes.size() / kPlaceBytes; }

  /// Fails with kInvalidArgument if there are fewer places than `lanes`, or no `on_arrived`.
  Status check(unsigned lanes) const;
};

/// The free places of a window that any lane may claim, as a stack. Thread-safe. Claimed places
/// keep it alive.
class PlacePool : public std::enable_shared_from_this<PlacePool> {
 public:
  explicit PlacePool(std::span<std::byte> window);

  /// Claims a place for `length_bytes`, at most kPlaceBytes; waits until one is free. Prefers the
  /// place that was released last, because its bytes may be in the cache. Fails with kCancelled
  /// after close().
  Result<Place> take(std::uint64_t length_bytes);

  /// Makes all running and later waits in take() fail. Never blocks.
  void close();

 private:
  std::mutex mutex_;
  std::condition_variable place_released_;
  std::vector<std::byte*> free_;  ///< guarded by mutex_
  bool closed_ = false;           ///< guarded by mutex_
};

}  // namespace gcr::transport
