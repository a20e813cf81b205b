// The CRIU driver: dump and restore over CRIU's RPC (`criu swrk`), no command line, no plugins.
//
// Calls block; run them off the control thread. CRIU never gets killed while it works on a CUDA
// process: its own timeout is raised instead.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {

/// How to start CRIU: the program and the arguments before its own, e.g. a private dynamic loader.
struct Command {
  std::vector<std::string> argv;
};

/// 40101 for 4.1.1.
Result<std::uint32_t> version(const Command& command);

/// `criu check` for what a dump needs; the error carries CRIU's own words.
Status check(const Command& command);

struct DumpReport {
  std::chrono::nanoseconds duration{};
  std::uint64_t image_bytes = 0;
};

/// Dumps the tree under `pid` into `images` (a directory on tmpfs) and leaves its tasks stopped.
/// CRIU runs inside the PID and mount namespaces of the process, so that a process which was
/// restored into namespaces of its own can be dumped again. On failure the tasks run again, as
/// CRIU leaves them, and the error quotes the first error line of CRIU's log.
Result<DumpReport> dump(const Command& command, pid_t pid, const std::filesystem::path& images);

/// Lets tasks that a dump left stopped run again (rollback).
Status resume_stopped(pid_t pid);

/// Kills the tree that was dumped and waits until it is gone.
Status kill_stopped(pid_t pid);

/// A restored tree in a PID and mount namespace of its own, whose tasks stand still. Destroying it
/// kills the namespace; release() leaves it behind for good, with its reaping init.
class RestoredTree {
 public:
  RestoredTree(RestoredTree&&) noexcept;
  RestoredTree& operator=(RestoredTree&&) noexcept;
  ~RestoredTree();

  pid_t pid() const;       ///< the root task, as the caller's PID namespace sees it
  pid_t init_pid() const;  ///< the reaper, likewise
  std::chrono::nanoseconds duration() const;

  /// Kills everything in the namespace and waits for it.
  void kill();
  void release();

 private:
  friend Result<RestoredTree> restore(const Command&, const std::filesystem::path&,
                                      const std::filesystem::path&);
  struct Impl;
  explicit RestoredTree(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Restores from `images`. `reaper` is the path of the init program that is left in the namespace;
/// it ends when the last task in there has ended. On failure nothing is left.
Result<RestoredTree> restore(const Command& command, const std::filesystem::path& images,
                             const std::filesystem::path& reaper);

}  // namespace gcr::criu
