// Ends a process that stands still, such as a CRIU whose tasks do not answer, so that those whom it
// holds go on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "migrate-agent/linux/procfs/process_handle.h"

namespace gcr::criu {

/// Watches one process on a thread of its own until it is destroyed.
class Watchdog {
 public:
  /// Kills `watched` once it has done nothing for `patience`: used no processor, and neither read
  /// nor written. While it writes, it waits for whoever reads, and is let be.
  Watchdog(procfs::Process watched, std::chrono::milliseconds patience);

  /// Ends the watching: whether it has killed it. Once.
  bool end();

 private:
  void watch(const std::stop_token& token, std::chrono::milliseconds patience);

  const procfs::Process watched_;
  bool has_killed_ = false;  ///< of the thread, while there is one
  std::mutex mutex_;
  std::condition_variable_any never_;
  std::jthread thread_;
};

}  // namespace gcr::criu
