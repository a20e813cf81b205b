// The landing window of an RDMA receiver. Senders write into it by themselves, so each lane has a
// part of its own, in which its sender chooses the places, and may choose one again only when the
// receiver has acknowledged what was in it. What a sender writes out of turn spoils its own bytes.
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

/// Thread-safe. Its places keep it alive.
class WindowPart : public std::enable_shared_from_this<WindowPart> {
 public:
  /// `wake` is woken when a place is given back.
  WindowPart(std::span<std::byte> bytes, std::shared_ptr<const UniqueFd> wake);

  std::span<std::byte> bytes() const { return bytes_; }
  std::uint16_t places() const { return static_cast<std::uint16_t>(taken_.size()); }

  /// Place `number`, into which the sender says it has written. kProtocol if there is no such
  /// place, if its bytes were not acknowledged yet, or if so many do not fit.
  Result<Place> take(std::uint64_t number, std::uint64_t length_bytes, std::uint64_t request);

  /// The requests whose places were given back, each once, at most `most`.
  std::vector<std::uint64_t> given_back(std::size_t most);

 private:
  void give_back(std::size_t number, std::uint64_t request);

  const std::span<std::byte> bytes_;
  const std::shared_ptr<const UniqueFd> wake_;
  std::mutex mutex_;
  std::vector<bool> taken_;
  std::vector<std::uint64_t> given_back_;  ///< requests
};

/// Thread-safe.
class WindowParts {
 public:
  /// Cuts `bytes` into parts for so many lanes, one place each at least. Once.
  void open(std::span<std::byte> bytes, unsigned lanes);

  /// A part that nobody has; null if there is none.
  std::shared_ptr<WindowPart> take(std::shared_ptr<const UniqueFd> wake);

 private:
  std::mutex mutex_;
  std::size_t part_bytes_ = 0;
  std::span<std::byte> bytes_;
  std::vector<std::weak_ptr<WindowPart>> parts_;
};

}  // namespace gcr::transport::rdma
