// Memory that is page-locked piece by piece while others already work with its first pieces.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "migrate-agent/device/device.h"
#include "src/base/result.h"

namespace gcr::agent {

/// Locks the pieces in their order, on a thread of its own: the driver locks one range at a time.
/// They stay locked while this object lives, and so must the memory. Its end waits for the piece
/// that is being locked.
class PageLocking {
 public:
  PageLocking(std::shared_ptr<device::Gpu> gpu, std::vector<std::span<std::byte>> pieces);

  const std::vector<std::span<std::byte>>& pieces() const { return pieces_; }

  /// Returns when the piece of this number is locked, or an error has ended the locking. Any
  /// thread.
  Status wait_for(std::size_t piece);

 private:
  void run(const std::stop_token& stop);

  const std::shared_ptr<device::Gpu> gpu_;
  const std::vector<std::span<std::byte>> pieces_;
  std::mutex mutex_;  ///< for the next three
  std::condition_variable changed_;
  std::vector<std::unique_ptr<device::HostMemory>> locked_;  ///< the first of pieces_
  Status failed_;
  std::jthread thread_;  ///< last: it uses all of the above, and ends first
};

}  // namespace gcr::agent
