// The CRIU driver: dumps, pre-dumps and restores by CRIU's command line. Its RPC (`criu swrk`) is
// for versions and checks alone: it cannot stream images. CRIU finds no plugins to load.
// Calls block; run them off the control thread. CRIU never gets killed while it works on a CUDA
// process: its own timeout is raised instead.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "migrate-agent/criu/command.h"
#include "migrate-agent/procfs/process_handle.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {

/// 40101 for 4.1.1.
Result<std::uint32_t> version(const Command& command);

/// `criu check` for what a dump needs; the error carries CRIU's own words.
Status check(const Command& command);

/// What the CPU can, as CRIU writes it down: the content of an image file.
Result<std::string> cpu_features(const Command& command);

/// Success if this CPU can all that `features`, from another host's cpu_features(), says.
/// kUnsupported with CRIU's words if it cannot, or if the bytes are no such image.
Status check_cpu_features(const Command& command, const std::string& features);

/// Success if the kernel can tell which pages a process has written to (soft-dirty), which
/// pre_dump() needs; else kUnsupported with the reason.
Status check_memory_tracking(const Command& command);

struct DumpReport {
  std::chrono::nanoseconds duration{};
  std::uint64_t image_bytes = 0;
  std::vector<proto::Credentials> credentials{};  ///< of every thread, by the kernel's word
};

/// Takes one image of a dump. `name` is CRIU's own ("pages-1.img"); `content` is read from where it
/// stands to its end of file. Images of memory ("pages-*.img") come as pipes while the dump goes
/// on, each on a thread of its own and possibly several at once: CRIU waits for whoever reads them.
/// All others come after the dump, one after the other, on the thread that called run(), and after
/// check_dumped_credentials(). An error ends the dump, and the tasks run again.
using TakeImage = std::function<Status(const std::string& name, UniqueFd content)>;

/// CRIU started beside a process, with everything done that can be done before it touches the
/// process: run() is all that is left. Move-only. Destroying it before run() ends CRIU and leaves
/// the process as it is. CRIU runs inside the PID and mount namespaces of the process, so that a
/// process which was restored into namespaces of its own can be dumped again.
class PreparedDump {
 public:
  /// The images go to run()'s TakeImage as they are made; `directory` only gets CRIU's log.
  /// `group`: the directory of a control group of version 2 that the process is alone in, and that
  /// is frozen when run() is called. CRIU thaws it while it holds the threads itself, and it is
  /// frozen again before CRIU lets go of them.
  static Result<PreparedDump> streaming(const Command& command, pid_t pid,
                                        const std::filesystem::path& directory,
                                        const std::filesystem::path& group = {});

  /// The images become files in `directory` (on tmpfs). `parent`: the directory of the last
  /// pre_dump(), beside or below `directory`; only what was written to since is dumped. It must be
  /// complete.
  static Result<PreparedDump> to_directory(const Command& command, pid_t pid,
                                           const std::filesystem::path& directory,
                                           const std::filesystem::path& parent = {},
                                           const std::filesystem::path& group = {});

  PreparedDump(PreparedDump&&) noexcept;
  PreparedDump& operator=(PreparedDump&&) noexcept;
  ~PreparedDump();

  /// Dumps the tree under the process and leaves its tasks stopped. Once, blocking. `take` is for a
  /// streaming dump. On failure the tasks run again, and the error quotes the first error line of
  /// CRIU's log or carries that of `take`. kDataLoss if the images give a thread other rights than
  /// it has.
  Result<DumpReport> run(const TakeImage& take = {});

 private:
  struct Impl;
  explicit PreparedDump(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// PreparedDump::to_directory() and run() in one.
Result<DumpReport> dump(const Command& command, pid_t pid, const std::filesystem::path& images);

/// Writes the memory of the tree under `pid` into `directory` while it runs (it stands still for
/// moments only), and has the kernel note what is written to from then on. `parent` is the
/// directory of the pre-dump before this one, if any: pages that were not written to since are left
/// out. The last dump is PreparedDump::to_directory() with this one as parent; both directories
/// then belong together, with the names they have to each other. On failure the tasks run on.
Result<DumpReport> pre_dump(const Command& command, pid_t pid,
                            const std::filesystem::path& directory,
                            const std::filesystem::path& parent = {});

/// Lets tasks that a dump left stopped run again (rollback). kNotFound if the process is gone.
Status resume_stopped(const procfs::Process& process);

/// Sends SIGKILL to the tree that was dumped. Success if it is gone. What is frozen may have to be
/// thawed before it ends: `after` does that. Waits until all of it has ended.
Status kill_stopped(const procfs::Process& process, const std::function<Status()>& after = {});

/// A restored tree in a PID and mount namespace of its own, whose tasks stand still. Destroying it
/// kills the namespace; release() leaves it behind for good, with its reaping init.
class RestoredTree {
 public:
  RestoredTree(RestoredTree&&) noexcept;
  RestoredTree& operator=(RestoredTree&&) noexcept;
  ~RestoredTree();

  const procfs::Process& root() const;  ///< the root task
  pid_t pid() const;                    ///< likewise, as the caller's PID namespace sees it
  const procfs::Process& init() const;  ///< the reaper
  std::chrono::nanoseconds duration() const;

  /// Kills everything in the namespace and waits for it.
  void kill();
  void release();

 private:
  friend class PreparedRestore;
  struct Impl;
  explicit RestoredTree(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// CRIU started in new namespaces, waiting for the first of its images: run() is all that is left.
/// Move-only. Destroying it before run() leaves nothing.
class PreparedRestore {
 public:
  /// The images will be files of `directory`, which exists and may get them from now on.
  /// `used_pids` are the numbers that the tree uses in its PID namespace, as far as they are known:
  /// CRIU's own processes keep away from them. `groups`: the cgroup.procs of the control groups in
  /// which all of it is made, one of which the caller freezes as soon as run() has ended: then
  /// run() does not wait until the tasks are stopped. None: the caller's own groups.
  static Result<PreparedRestore> create(const Command& command,
                                        const std::filesystem::path& directory,
                                        const std::set<pid_t>& used_pids,
                                        std::vector<UniqueFd> groups = {});

  PreparedRestore(PreparedRestore&&) noexcept;
  PreparedRestore& operator=(PreparedRestore&&) noexcept;
  ~PreparedRestore();

  /// Restores from the images that are in the directory now. Once, blocking. Starts CRIU anew if it
  /// sits on a number that the tree turns out to need. On failure nothing is left.
  Result<RestoredTree> run();

 private:
  struct Impl;
  explicit PreparedRestore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Restores from `images`, unprepared.
Result<RestoredTree> restore(const Command& command, const std::filesystem::path& images);

}  // namespace gcr::criu
