// How an agent reaches the GPU state of another process: it holds back the process's GPU calls,
// takes over its allocations and gives them back. There are two implementations, each in a folder
// of its own: migrate-agent/gpu/access/door goes through the preload library in the process,
// migrate-agent/gpu/access/driver through the driver alone.
//
// A GpuAccess belongs to one thread at a time; methods block, each for a bounded time. After an
// error it can still be used, unless the error says that the process has ended.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "src/base/uuid.h"

namespace gcr::gpu {

/// An allocation that a descriptor can own. All others are control state, and move with it.
struct LocalAllocation {
  std::uint64_t local_id = 0;    ///< stable for the allocation's life, across migrations too
  std::uint64_t size_bytes = 0;  ///< 0: the process does not know it
  Uuid gpu{};                    ///< that it is on, or for host memory one that reaches it
  std::optional<std::uint32_t> host_node{};  ///< in host memory, of this NUMA node
  bool shared = false;       ///< other processes may map it: its descriptors are duplicates of one
  std::uint64_t memory = 0;  ///< the same number: the same memory; 0: it has no number yet
};

/// An allocation and a descriptor that owns it.
struct ExportedAllocation {
  LocalAllocation allocation;
  UniqueFd descriptor;
};

/// Memory that a process has made itself, and what it was given for it.
struct Replacement {
  LocalAllocation allocation;  ///< on its GPU as it is now
  UniqueFd made;
  UniqueFd given;
};

struct AccessState {
  bool quiet = false;     ///< GPU calls are held back
  bool detached = false;  ///< its allocations are not mapped
  // What prevents a migration.
  bool managed_memory = false;
  bool ipc_memory = false;       ///< memory that is no allocation is shared by legacy IPC
  bool foreign_handles = false;  ///< memory is reachable in ways that a detach does not undo
  bool lost_pools = false;       ///< a memory pool is shared or on the host
  bool profiled = false;         ///< a profiler has attached itself to the driver
  std::string past_gate{};  ///< what calls the driver past the gate, as the process says; or ""
  std::uint64_t untracked_bytes = 0;  ///< of known GPU memory that is not an allocation
  std::uint32_t withheld = 0;         ///< lookups of driver functions that the library hides
  // The thread in the process that answers the agent: it has to run for every call.
  pid_t thread = 0;         ///< its id in the process's own PID namespace; 0: there is none
  std::uint64_t stack = 0;  ///< an address in its stack
};

/// The state of a process whose further calls are held back.
struct Held {
  bool quiet = false;         ///< all earlier calls have returned, and its GPUs are idle
  bool capturing = false;     ///< a stream is being captured, which only further calls can end
  std::string obstacle{};     ///< why it is not quiet, in words
  std::uint32_t waiting = 0;  ///< calls that are held back now
};

class GpuAccess {
 public:
  using Milliseconds = std::chrono::milliseconds;
  using Microseconds = std::chrono::microseconds;
  static constexpr Milliseconds kPatience = std::chrono::seconds(30);
  /// A process that does not answer because it is ending has ended within this.
  static constexpr Milliseconds kEndPatience{2000};

  virtual ~GpuAccess() = default;

  /// Whether the process has no preload library that answers. Then it has no allocations, cannot be
  /// stepped or drop pages, and the driver's lock holds its calls back.
  virtual bool is_driver_alone() const { return false; }

  /// Holds further calls back, and waits up to `patience` until the process is quiet. Calls stay
  /// held back even if it is not, until resume() or, unless the process is detached, until `lease`
  /// after the last request (0: for ever).
  virtual Result<Held> hold(Microseconds patience, Milliseconds lease) = 0;

  /// Lets one of the held calls pass, if there is one, and waits as hold().
  virtual Result<Held> step(Microseconds patience) = 0;

  /// Lets the calls pass. The process must be attached.
  virtual Status resume() = 0;

  /// Whole pages of the process's memory.
  struct Pages {
    std::uint64_t address;
    std::uint64_t bytes;
  };

  /// The process's state; changes nothing.
  virtual Result<AccessState> read_state(Milliseconds patience = kPatience) = 0;

  /// All allocations in the order of ids, as of one moment.
  virtual Result<std::vector<LocalAllocation>> allocations() = 0;

  /// One descriptor per id, in the order of `ids`. The process keeps its memory. On failure nothing
  /// is exported; kNotFound if one of them does not exist any more.
  virtual Result<std::vector<ExportedAllocation>> take(std::span<const std::uint64_t> ids) = 0;

  /// The process unmaps all its allocations. It must be quiet, and all allocations must have been
  /// taken through this object since the last attach. On failure everything is mapped as before,
  /// except with kDataLoss: then it is detached, and attach() maps everything again.
  virtual Status detach() = 0;

  /// Maps everything where it was. `descriptors`, by local id, are handed over in every case. On
  /// failure nothing is mapped, and the process keeps the descriptors for the next attempt.
  /// kUnsupported: see replace().
  virtual Status attach(std::vector<std::pair<std::uint64_t, UniqueFd>> descriptors) = 0;

  /// After an attach() with kUnsupported: the driver lets the process map only memory that it has
  /// allocated itself. The process allocates memory in place of what attach() gave it for `ids`, at
  /// most kMostReplaced. The caller copies the content; then attach({}) maps the new memory. On
  /// failure the descriptors of `ids` need to be given again.
  static constexpr std::size_t kMostReplaced = 32;
  virtual Result<std::vector<Replacement>> replace(std::span<const std::uint64_t> ids) {
    (void)ids;
    return Error(Code::kUnsupported,
                 "the process cannot allocate memory in place of what it was given");
  }

  /// Gives pages of zeros back to the kernel. The caller ensures that they are private anonymous
  /// memory and stay zeros meanwhile (migrate-agent/process/pages/zero_pages.h). Gives the number
  /// of bytes; on failure some pages may be gone. kUnsupported, as the next: nothing in the process
  /// can do it.
  virtual Result<std::uint64_t> drop_pages(std::span<const Pages>) { return has_no_library(); }

  /// Marks whole mappings for huge pages, which does not change their content. kNotFound if the
  /// kernel has no huge pages, or an address is not mapped.
  virtual Status use_huge_pages(std::span<const Pages>) { return has_no_library(); }

  /// A new userfaultfd of the process's memory, made by the process, which closes its own copy
  /// (migrate-agent/process/pages/write_tracker.h). kUnsupported: the process cannot make one.
  virtual Result<UniqueFd> watch_memory() {
    return Error(Code::kUnsupported, "the process gives no userfaultfd");
  }

  /// The process's memory to which a device may write by itself now, in the order of addresses, not
  /// in whole pages.
  virtual Result<std::vector<Pages>> registered_memory() { return std::vector<Pages>(); }

 private:
  static Error has_no_library() {
    return Error(Code::kUnsupported, "the process was not started under the preload library");
  }
};

}  // namespace gcr::gpu
