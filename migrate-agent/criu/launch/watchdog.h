// Ends a process that makes no progress, such as a CRIU whose tasks do not answer, so that the
// tasks that it holds run again.
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
  /// nor written. A process that waits for the reader of what it writes is not killed.
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
