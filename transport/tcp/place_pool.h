// The free places of a landing window.
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

/// A stack of free places. Thread-safe. Claimed places keep it alive.
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
