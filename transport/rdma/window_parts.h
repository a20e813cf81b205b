// The landing window of an RDMA receiver. The sender's device writes into it directly, so each lane
// has a part of its own. The lane's sender chooses the places in it, and may reuse one only when
// the receiver has acknowledged its content. A sender that violates this corrupts only its own
// data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "src/base/unique_fd.h"
#include "transport/landing_window.h"

namespace gcr::transport::rdma {

/// The part of one lane. Thread-safe. Claimed places keep it alive.
class WindowPart : public std::enable_shared_from_this<WindowPart> {
 public:
  /// Calls wake_up(*wake) when a place is released.
  WindowPart(std::span<std::byte> bytes, std::shared_ptr<const UniqueFd> wake);

  std::span<std::byte> bytes() const { return bytes_; }
  std::uint16_t places() const { return static_cast<std::uint16_t>(taken_.size()); }

  /// Claims place `number`, into which the sender says it has written. Fails with kProtocol if
  /// there is no such place, it is still claimed, or `length_bytes` do not fit.
  Result<Place> claim(std::uint64_t number, std::uint64_t length_bytes, std::uint64_t request);

  /// Returns up to `most` requests whose places were released, each once.
  std::vector<std::uint64_t> take_released(std::size_t most);

 private:
  void release(std::size_t number, std::uint64_t request);

  const std::span<std::byte> bytes_;
  const std::shared_ptr<const UniqueFd> wake_;
  std::mutex mutex_;
  std::vector<bool> taken_;
  std::vector<std::uint64_t> released_;  ///< requests
};

/// The window and its parts. Thread-safe.
class WindowParts {
 public:
  /// Cuts `bytes` into parts for `lanes` lanes, each with at least one place. Call once.
  void open(std::span<std::byte> bytes, unsigned lanes);

  /// Returns a part that no lane uses; null if there is none.
  std::shared_ptr<WindowPart> claim(std::shared_ptr<const UniqueFd> wake);

 private:
  std::mutex mutex_;
  std::size_t part_bytes_ = 0;
  std::span<std::byte> bytes_;
  std::vector<std::weak_ptr<WindowPart>> parts_;
};

}  // namespace gcr::transport::rdma
