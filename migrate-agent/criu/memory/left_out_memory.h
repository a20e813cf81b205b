// The memory that CRIU leaves out of a dump because its caller sends it: the agent's end of what
// gcr-in-criu.so asks and tells while CRIU looks at the memory of stopped tasks (launch.h).
#pragma once

#include <sys/types.h>

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "migrate-agent/criu/launch/launch.h"
#include "src/base/address_range.h"
#include "src/base/result.h"
#include "src/base/socket_pair.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {

/// What is left out of CRIU's images.
struct LeftOut {
  std::vector<AddressRange> ranges{};  ///< of a task, ascending: private, anonymous, writable
  /// Of all tasks: nameless memory that they map. The caller sends it, and what says which of it
  /// there was (images::shared_memory_map()).
  std::vector<launch::SharedMemoryId> shared{};
};

/// Says it for a stopped task of the tree, by its PID here. Called on one thread, during the dump:
/// when all tasks are stopped, and before CRIU has read memory of any.
using ChooseMemory = std::function<LeftOut(pid_t task)>;

/// Serves one CRIU, on a thread of its own. Destroying it ends that.
class LeftOutMemory {
 public:
  struct Task {
    pid_t pid = 0;                     ///< in the caller's PID namespace
    std::vector<AddressRange> ranges;  ///< whole pages that are there, ascending, disjoint
  };
  using Tasks = std::map<pid_t, Task>;  ///< by PID in the namespace of the tree

  /// `choose` says for each task of the tree under `root` what the caller sends; see DumpOptions.
  static Result<LeftOutMemory> serve(pid_t root, ChooseMemory choose);

  LeftOutMemory(LeftOutMemory&&) noexcept = default;
  LeftOutMemory& operator=(LeftOutMemory&&) = delete;
  ~LeftOutMemory();

  /// The end for CRIU, given away once: CRIU alone may have it when finish() is called.
  UniqueFd take_criu_end() { return std::move(sockets_.theirs); }

  /// What was left out of the whole dump, when CRIU has ended. kInternal if it was told wrongly.
  /// Once.
  Result<Tasks> finish() { return served_.get(); }

 private:
  explicit LeftOutMemory(SocketPair sockets) : sockets_(std::move(sockets)) {}

  SocketPair sockets_;
  std::future<Result<Tasks>> served_;
};

}  // namespace gcr::criu
