// What has landed in the window, on its way to VRAM.
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

/// Copies chunks into VRAM on a thread of its own, and gives each place back when the GPU has read
/// it. While the GPU copies what came, the next chunks gather: one wait is for all of them.
/// Thread-safe.
class UploadQueue {
 public:
  UploadQueue();
  /// Waits for copies under way; what was not started is dropped.
  ~UploadQueue();
  UploadQueue(const UploadQueue&) = delete;
  UploadQueue& operator=(const UploadQueue&) = delete;

  /// Returns at once. `stream`, which nobody else uses, and the VRAM live until drain() has
  /// returned. Fails with what made an earlier copy fail.
  Status add(device::Stream& stream, device::Address to, transport::Place place);

  /// Waits until all that was added is in VRAM. Fails with what made any copy fail.
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
