// The places of a landing window that no lane and no chunk has.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "transport/landing_window.h"

namespace gcr::transport {

/// Thread-safe. Places keep it alive.
class PlacePool : public std::enable_shared_from_this<PlacePool> {
 public:
  explicit PlacePool(std::span<std::byte> window);

  /// The first `length_bytes` of a place, at most kPlaceBytes: of the one that was given back last,
  /// because its bytes may be cached. Waits for one; kCancelled after close().
  Result<Place> take(std::uint64_t length_bytes);

  /// Ends all waits, now and later. Never blocks.
  void close();

 private:
  std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<std::byte*> free_;  ///< guarded by mutex_
  bool closed_ = false;           ///< guarded by mutex_
};

}  // namespace gcr::transport
