// Uploads chunks from the landing window to VRAM.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "migrate-agent/gpu/device/device.h"
#include "transport/landing_window.h"

namespace gcr::mover {

/// Copies chunks into VRAM on a thread of its own, and frees each place of the window when the GPU
/// has read it. Thread-safe.
class UploadQueue {
 public:
  UploadQueue();
  /// Waits for copies in flight; copies that were not started are dropped.
  ~UploadQueue();
  UploadQueue(const UploadQueue&) = delete;
  UploadQueue& operator=(const UploadQueue&) = delete;

  /// Enqueues one copy and returns at once. `stream`, which only this queue uses, and the VRAM must
  /// live until drain() has returned. Fails with the error of an earlier copy.
  Status add(device::Stream& stream, device::Address to, transport::Place place);

  /// Waits until all that was added is in VRAM. Fails with the first error of a copy.
  Status drain();

 private:
  struct Upload {
    device::Stream* stream;
    device::Address to;
    transport::Place place;
  };

  void run();
  static Status copy(const std::vector<Upload>& uploads);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Upload> waiting_;  ///< guarded by mutex_, as all that follows
  bool copying_ = false;
  bool stop_ = false;
  std::optional<Error> error_;
  std::jthread thread_;
};

}  // namespace gcr::mover
