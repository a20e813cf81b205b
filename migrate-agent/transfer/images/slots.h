// The slots of the destination's ring, as the sender hands them out.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "src/base/result.h"
#include "transport/channel.h"

namespace gcr::images {

/// Thread-safe. A slot that was written is handed out again only after a flush that began when its
/// write had returned.
class Slots {
 public:
  Slots(transport::Channel& channel, std::uint32_t count);

  /// A free slot; waits for the destination if necessary. The caller returns it with written(),
  /// also on failure.
  Result<std::uint32_t> acquire();

  /// The write into the slot has returned.
  void written(std::uint32_t slot);

 private:
  Status flush(std::unique_lock<std::mutex>& lock);

  transport::Channel& channel_;
  const std::uint32_t count_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> written_;
  bool flushing_ = false;
};

}  // namespace gcr::images
