// The memory that CRIU leaves out of a dump because the agent sends it: the agent's end of the
// conversation with gcr-in-criu.so (launch.h).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "migrate-agent/criu/launch/launch.h"
#include "src/base/address_ranges.h"
#include "src/base/result.h"
#include "src/base/socket_pair.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {

/// Memory that CRIU leaves out of its images.
struct LeftOut {
  std::vector<AddressRange> ranges{};  ///< of a task, ascending: private, anonymous, writable
  /// Of all tasks: nameless memory that they map. The caller sends it, and what says which of it
  /// there was (images::shared_memory_map()).
  std::vector<launch::SharedMemoryId> shared{};
};

/// Chooses and sends the memory that is moved separately from the CRIU images of one dump.
class SeparateMemory {
 public:
  virtual ~SeparateMemory() = default;

  /// What CRIU leaves out of a stopped task, by its PID here. Called on one thread, which is not
  /// that of take(), when all tasks are stopped and before CRIU has read memory of any.
  virtual LeftOut choose(pid_t task) = 0;

  /// Sends what was left out of a task: as images `name`-0.img and so on, in which every byte has
  /// its address as its offset, for a restore to fill the task with. Called after the dump, on the
  /// thread of PreparedDump::run(); everything must be read when it returns. `pages` are ascending
  /// and disjoint. An error ends the dump, and the tasks run again.
  virtual Status take(const std::string& name, pid_t task,
                      const std::vector<AddressRange>& pages) = 0;
};

/// Serves one CRIU, on a thread of its own. Destroying it ends that thread.
class LeftOutMemory {
 public:
  struct Task {
    pid_t pid = 0;                     ///< in the caller's PID namespace
    std::vector<AddressRange> ranges;  ///< whole pages that are there, ascending, disjoint
  };
  using Tasks = std::map<pid_t, Task>;  ///< by PID in the namespace of the tree

  /// For a dump of the tree under `root`. Until ask() nothing is left out.
  static Result<LeftOutMemory> serve(pid_t root);

  LeftOutMemory(LeftOutMemory&&) noexcept = default;
  LeftOutMemory& operator=(LeftOutMemory&&) = delete;
  ~LeftOutMemory();

  /// The end for CRIU, given away once: CRIU alone may have it when finish() is called.
  UniqueFd take_criu_end() { return std::move(sockets_.theirs); }

  /// From now on `memory` is asked about each task. It outlives this object.
  void ask(SeparateMemory& memory) { *asked_ = &memory; }

  /// Once, when CRIU has ended: what was left out of the whole dump. kInternal if told wrongly.
  Result<Tasks> finish() { return served_.get(); }

 private:
  explicit LeftOutMemory(SocketPair sockets) : sockets_(std::move(sockets)) {}

  using Asked = std::atomic<SeparateMemory*>;

  SocketPair sockets_;
  std::shared_ptr<Asked> asked_ = std::make_shared<Asked>(nullptr);  ///< with the thread
  std::future<Result<Tasks>> served_;
};

}  // namespace gcr::criu
