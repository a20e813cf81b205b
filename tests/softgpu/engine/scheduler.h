// Asynchronous work: tasks that wait for other tasks, run by a pool of threads.
//
// A stream is only the last task submitted to it; an event is a task; waiting for either is waiting
// for that task. So nothing occupies a thread while it waits, and a pool of a few threads cannot be
// blocked by many streams. The same holds for a task that waits for memory to change, as kernels do
// that spin on a flag: it is retried after a pause, and blocks only its stream.
#pragma once

#include <asio/thread_pool.hpp>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace gcr::softgpu {

class Scheduler;

/// One unit of work. Shared by its stream, by events and by the tasks before it; done() is final.
class Task {
 public:
  bool done() const { return done_.load(std::memory_order_acquire); }

 private:
  friend class Scheduler;
  std::function<bool()> run_;
  bool spins_ = false;    ///< has been tried
  bool awaited_ = false;  ///< a thread sleeps until it is done
  int waits_for_ = 1;
  std::atomic<bool> done_ = false;
  std::vector<std::shared_ptr<Task>> successors_;
};

using TaskRef = std::shared_ptr<Task>;
using Deadline = std::optional<std::chrono::steady_clock::time_point>;

class Scheduler {
 public:
  /// Starts the threads, with every signal blocked in them.
  Scheduler();

  /// Submits `run`, to start once every task of `after` (null ones are ignored) is done. It is
  /// called again, after a pause, as long as it returns false. Blocks while very many tasks are
  /// queued already, as a real driver's launch queue does.
  TaskRef submit(std::function<bool()> run, std::span<const TaskRef> after);

  /// Returns when `task` is done (at once for null).
  void wait(const TaskRef& task);

  /// Waits until nothing at all is queued or running. False: the deadline passed first.
  bool wait_idle(const Deadline& deadline);

 private:
  void start(TaskRef task);
  void execute(const TaskRef& task);
  void try_again_later(const TaskRef& task);
  void try_again();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t unfinished_ = 0;
  asio::thread_pool pool_;

  // Spinning tasks. The thread that returns them to the pool starts with the first one.
  std::mutex spinning_mutex_;
  std::condition_variable spins_;
  std::vector<TaskRef> spinning_;
  std::chrono::microseconds pause_{};
  bool spinner_started_ = false;
};

}  // namespace gcr::softgpu
