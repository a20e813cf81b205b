// The objects behind the API's handles: contexts, streams, events, graphs. Objects are owned by the
// registries of the Process; a handle is the object's address and is looked up before it is used.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tests/softgpu/engine/result.h"
#include "tests/softgpu/engine/scheduler.h"
#include "tests/softgpu/engine/shared_event.h"

namespace gcr::softgpu {

struct Context;
struct Graph;

inline constexpr unsigned kNonBlocking = 1;    ///< a stream's flag
inline constexpr unsigned kDisableTiming = 2;  ///< an event's flags
inline constexpr unsigned kInterprocess = 4;

/// With CUDA's numbers.
enum class NodeType {
  kKernel = 0,
  kMemcpy = 1,
  kMemset = 2,
  kHost = 3,
  kGraph = 4,
  kEmpty = 5,
  kWaitEvent = 6,
  kEventRecord = 7,
  kMemAlloc = 10,
  kMemFree = 11,
};

/// With both interfaces' numbers.
enum class CaptureMode { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

/// Objects by address. Thread-safe; get() keeps the object alive for the caller.
template <class T>
class Handles {
 public:
  std::shared_ptr<T> add(std::shared_ptr<T> object) {
    std::lock_guard lock(mutex_);
    objects_[object.get()] = object;
    return object;
  }
  std::shared_ptr<T> get(const void* handle) const {
    std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  std::shared_ptr<T> take(const void* handle) {
    std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    auto object = std::move(found->second);
    objects_.erase(found);
    return object;
  }
  std::vector<std::shared_ptr<T>> all() const {
    std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<T>> list;
    for (const auto& [key, object] : objects_) list.push_back(object);
    return list;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<T>> objects_;
};

/// One operation of a stream, now or when a graph is launched. If it returns Result::kNotReady, it
/// waits for memory to change and is run again. Any other error sticks to the context, as a fault
/// on a real GPU would.
struct Operation {
  NodeType type = NodeType::kEmpty;
  std::function<Result()> run;
  bool instant = false;  ///< immediate: runs at once if nothing precedes it
  bool kernel = false;   ///< takes one
};

/// From the beginning of a capture to its end. Shared by all streams that joined.
struct Capture {
  std::shared_ptr<Graph> graph;
  const void* origin = nullptr;  ///< the stream that began it
  CaptureMode mode = CaptureMode::kGlobal;
  std::thread::id thread;
  std::uint64_t id = 0;
  std::atomic<bool> invalidated = false;
};

enum class StreamKind { kLegacy, kPerThread, kCreated };

struct Stream {
  std::shared_ptr<Context> context;
  StreamKind kind = StreamKind::kCreated;
  unsigned flags = 0;
  int priority = 0;
  unsigned long long id = 0;
  // Below: guarded by the context's mutex.
  TaskRef tail;
  std::shared_ptr<Capture> capture;

  bool blocking() const { return kind != StreamKind::kLegacy && (flags & kNonBlocking) == 0; }
  /// Takes the context's mutex.
  bool captured() const;
};

struct Event {
  std::shared_ptr<Context> context;
  unsigned flags = 0;
  std::mutex mutex;
  TaskRef task;                      ///< null: never recorded, which counts as done
  std::shared_ptr<Capture> capture;  ///< recorded into a capture rather than on the device
  std::shared_ptr<std::atomic<std::chrono::steady_clock::rep>> time;
  std::shared_ptr<SharedEvent> shared;  ///< for an event of several processes, in place of `task`
};

/// Nodes are in an order in which they may run: a node's dependencies exist before it.
struct GraphNode {
  Operation operation;
};
struct Graph {
  std::mutex mutex;
  std::vector<std::shared_ptr<GraphNode>> nodes;
};
struct GraphExec {
  std::vector<std::shared_ptr<GraphNode>> nodes;
};

struct Context : std::enable_shared_from_this<Context> {
  int ordinal = 0;
  unsigned flags = 0;
  bool primary = false;
  std::shared_ptr<Context> green_of;  ///< the primary context that owns allocations made in it
  unsigned long long id = 0;
  /// Stack, printf, heap and more, in the interfaces' order: stored, but without effect.
  std::array<std::size_t, 8> limits{1024, 1024 * 1024, 8 * 1024 * 1024};
  int cache = 0;                   ///< the program's preference; nothing depends on it
  std::set<const Context*> peers;  ///< guarded by `mutex`
  std::atomic<Result> fault{Result::kSuccess};

  mutable std::mutex mutex;
  std::shared_ptr<Stream> legacy;
  std::unordered_map<std::thread::id, std::shared_ptr<Stream>> per_thread;
  std::vector<std::shared_ptr<Stream>> created;
  /// The stack limit was set: the next kernel waits for an idle context, and later work for that
  /// kernel.
  bool stack_unsettled = false;
  TaskRef settles;  ///< that kernel

  /// Queues an operation on a stream, or adds it to the graph that the stream is captured into.
  /// `task` receives the task to wait for, null if it is done already; `also_after` must be done
  /// first.
  Result submit(Stream& stream, Operation operation, TaskRef* task = nullptr,
                const TaskRef& also_after = nullptr);
  /// Whether the next kernel had to wait for an idle context. The caller is that kernel.
  bool settle_stack();
  /// The tasks that must be done before work submitted to this stream now could start. Mutex held.
  std::vector<TaskRef> predecessors(const Stream& stream) const;
  /// The last tasks of all streams.
  std::vector<TaskRef> tails();
  std::vector<TaskRef> tails_locked() const;
  std::shared_ptr<Stream> stream_of_this_thread();
  Result synchronize(Stream& stream);
  Result synchronize();
  /// Kernels of this context may access the allocations of `other`, of another device.
  bool reaches(const Context* other) const;
  /// Any of this context's streams is being captured.
  bool capturing();
};

}  // namespace gcr::softgpu
