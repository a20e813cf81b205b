#include "migrate-agent/transfer/images/slots.h"

#include <utility>

namespace gcr::images {

Slots::Slots(transport::Channel& channel, std::uint32_t count) : channel_(channel), count_(count) {
  for (std::uint32_t slot = count; slot-- > 0;) free_.push_back(slot);
}

Result<std::uint32_t> Slots::acquire() {
  std::unique_lock lock(mutex_);
  for (;;) {
    // Flushes at half of the slots, so that others find slots while this thread waits.
    const bool low = free_.empty() || (free_.size() <= count_ / 2 && written_.size() >= count_ / 4);
    if (low && !flushing_ && !written_.empty()) {
      GCR_TRY(flush(lock));
      continue;
    }
    if (!free_.empty()) break;
    changed_.wait(lock);
  }
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void Slots::written(std::uint32_t slot) {
  const std::lock_guard lock(mutex_);
  written_.push_back(slot);
  changed_.notify_all();
}

Status Slots::flush(std::unique_lock<std::mutex>& lock) {
  flushing_ = true;
  const std::vector<std::uint32_t> flushed = std::exchange(written_, {});
  lock.unlock();
  const Status status = channel_.flush();
  lock.lock();
  flushing_ = false;
  // After a failure the channel is broken, so reusing these slots does no harm.
  free_.insert(free_.end(), flushed.begin(), flushed.end());
  changed_.notify_all();
  return status;
}

}  // namespace gcr::images
