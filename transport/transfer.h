// State that the lanes of one end share: the error that broke the transfer, and the counters.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "src/base/result.h"
#include "transport/channel.h"

namespace gcr::transport {

/// The error that broke a transfer; every lane reports it. Thread-safe.
class FirstError {
 public:
  /// Keeps `error` unless there is one already; returns the one that is kept.
  Error set(Error error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    is_set_.store(true, std::memory_order_release);
    return *error_;
  }

  explicit operator bool() const { return is_set_.load(std::memory_order_acquire); }

  /// The kept error; success if there is none.
  Status status() const {
    if (!*this) return {};
    const std::lock_guard lock(mutex_);
    return *error_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Error> error_;  ///< guarded by mutex_
  std::atomic<bool> is_set_ = false;
};

/// Counts the traffic of all lanes. Thread-safe.
class Counters {
 public:
  void add_bytes(std::uint64_t payload, std::uint64_t header) {
    payload_bytes_.fetch_add(payload, std::memory_order_relaxed);
    wire_bytes_.fetch_add(payload + header, std::memory_order_relaxed);
  }
  void add_write() { writes_.fetch_add(1, std::memory_order_relaxed); }

  Statistics statistics(std::uint64_t reconnections = 0) const {
    return {.payload_bytes = payload_bytes_.load(std::memory_order_relaxed),
            .wire_bytes = wire_bytes_.load(std::memory_order_relaxed),
            .writes = writes_.load(std::memory_order_relaxed),
            .reconnections = reconnections};
  }

 private:
  std::atomic<std::uint64_t> payload_bytes_ = 0;
  std::atomic<std::uint64_t> wire_bytes_ = 0;
  std::atomic<std::uint64_t> writes_ = 0;
};

}  // namespace gcr::transport
