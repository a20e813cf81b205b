// The CRIU driver: dumps and restores by CRIU's command line. Its RPC (`criu swrk`) is
// used only for versions and checks: it cannot stream images. CRIU finds no plugins to load, unless
// a job needs one (plugin.h). Calls block; run them off the control thread. A CRIU that works is
// not killed: the tasks that it holds would run on wherever it has them.
#pragma once

#include <sys/types.h>

#include <bitset>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "migrate-agent/criu/launch/command.h"
#include "migrate-agent/criu/launch/plugin.h"
#include "migrate-agent/criu/memory/left_out_memory.h"
#include "migrate-agent/linux/procfs/process_handle.h"
#include "migrate-agent/process/inspect/credentials.h"
#include "migrate-agent/process/inspect/sockets.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {

/// `criu check` for what a dump needs; the error quotes CRIU.
Status check(const Command& command);

/// What CRIU says of itself and of this host.
struct Facts {
  std::uint32_t version = 0;      ///< 40101 for 4.1.1
  Status check{};                 ///< as check()
  std::string cpu_features = {};  ///< as CRIU writes them, an image file's content; empty: unknown
};

/// All of it, by one run of CRIU. Fails if there is no CRIU that answers.
Result<Facts> facts(const Command& command);

/// Success if this CPU has all `features`, from another host's facts(). kUnsupported, quoting CRIU,
/// if it does not, or if the bytes are not such an image.
Status check_cpu_features(const Command& command, const std::string& features);

/// Where the command's plugins are, if it does not say so: in amdgpu in its directory, where
/// scripts/install-deps builds them, else where distributions have them.
std::filesystem::path plugins_of(const Command& command);

/// The plugin `name`, of plugin_for(), from plugins_of(command), for a CRIU of this Facts::version.
/// Errors as Plugin::open().
Result<std::shared_ptr<const Plugin>> open_plugin(const Command& command, std::string_view name,
                                                  std::uint32_t criu_version);

/// Takes one image of a dump. `name` is CRIU's own ("pages-1.img"); `content` is read from its
/// current offset to its end. Images of memory (of processes, "pages-*.img", and of GPUs,
/// "amdgpu-*.img") come as pipes during the dump, each on a thread of its own: CRIU blocks until
/// they are read. All others come after the dump and settle_threads(), one after the other, on the
/// thread that called run(). An error ends the dump, and the tasks run again.
using TakeImage = std::function<Status(const std::string& name, UniqueFd content)>;

/// What a dump may be told besides what it dumps.
struct DumpOptions {
  /// A version 2 control group that holds only the process, and is frozen when run() is called.
  /// CRIU thaws it while it holds the threads, and freezes it before it releases them. Empty: none.
  std::filesystem::path group{};
  process::OutsideTcp outside_tcp = process::OutsideTcp::kRefuse;
  /// Asked for each thread by its rights as they were dumped, before the small images are taken.
  std::function<Status(const proto::Credentials& thread)> may_move{};
  /// That CRIU loads; null: none.
  std::shared_ptr<const Plugin> plugin{};
  /// The cgroup.procs of the groups that CRIU works in, valid as these options. None: the caller's.
  std::span<const UniqueFd> groups{};
  /// A CRIU that does nothing for so long, while the tasks are stopped, is ended, and run() fails.
  std::chrono::milliseconds patience{std::chrono::seconds(30)};
  /// The process is the root of a container's job: CRIU works inside all namespaces of it.
  bool in_container = false;
};

/// A CRIU that was started for a process and has done all that it can do before it touches the
/// process; run() does the rest. Move-only. Destroying it before run() ends CRIU and leaves the
/// process as it is. CRIU runs inside the PID and mount namespaces of the process, so that a
/// restored process can be dumped again.
class PreparedDump {
 public:
  /// `directory` only gets CRIU's log.
  static Result<PreparedDump> create(const Command& command, pid_t pid,
                                     const std::filesystem::path& directory,
                                     const DumpOptions& options = {});

  PreparedDump(PreparedDump&&) noexcept;
  PreparedDump& operator=(PreparedDump&&) noexcept;
  ~PreparedDump();

  /// Dumps the process tree and leaves its tasks stopped; gives the rights of every thread, from
  /// the kernel. TCP connections are left in repair mode (see tcp_sockets.h). Once, blocking.
  /// Images go to `take` while CRIU writes them; `memory`, if there is one, sends what it has
  /// chosen itself, and is not called any more when this returns. Files that are `renamed` have
  /// other names in the images. On failure the tasks run again, and the error quotes the first
  /// error line of the CRIU log or carries that of `take`. kDataLoss if the images give a thread
  /// other rights than it has; kTimeout if CRIU did nothing any more; for connections see
  /// settle_connections().
  Result<std::vector<process::ThreadRights>> run(
      const TakeImage& take, const std::map<std::string, std::string>& renamed = {},
      SeparateMemory* memory = nullptr);

 private:
  struct Impl;
  explicit PreparedDump(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Lets tasks that a dump left stopped run again (roll-back), after end_repair(), and before them
/// their GPU queues (paused_queues.h). kNotFound if the process is gone.
Status resume_stopped(const procfs::Process& process);

/// A restored tree whose tasks are stopped, in a PID and mount namespace of its own or in a
/// container. Destroying it kills the namespace or the container; release() leaves it behind for
/// good, with its init.
class RestoredTree {
 public:
  RestoredTree(RestoredTree&&) noexcept;
  RestoredTree& operator=(RestoredTree&&) noexcept;
  ~RestoredTree();

  const procfs::Process& root() const;  ///< the root task
  pid_t pid() const;                    ///< its PID in the caller's PID namespace
  const procfs::Process& init() const;  ///< the reaper, or the container's init
  bool has_reaper() const;              ///< false: it is in a container

  /// Kills everything in the namespace and waits for it.
  void kill();
  void release();

 private:
  friend class PreparedRestore;
  struct Impl;
  explicit RestoredTree(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// The container that a tree is restored into.
struct RestoreContainer {
  procfs::Process init;
  struct Stream {
    UniqueFd descriptor;     ///< of the init
    std::uint64_t pipe = 0;  ///< that the tasks have in its place in the images
  };
  std::vector<Stream> streams{};  ///< at most three
};

/// How a tree is restored.
struct RestoreOptions {
  /// The cgroup.procs of the control groups to restore into, one of which the caller freezes when
  /// run() has ended: run() does not wait until the tasks are stopped. None: the caller's own.
  std::vector<UniqueFd> groups{};
  /// Bounds what place() takes, which counts as memory of these groups.
  std::uint64_t most_in_place = UINT64_MAX;
  /// That CRIU loads; null: none.
  std::shared_ptr<const Plugin> plugin{};
  /// Where the plugin has to put the GPUs: else run() fails.
  PluginMap planned{};
  /// Where the reaper of a released tree writes how the root task has ended: a file `status` with
  /// what waitpid(2) tells, in decimal. None: nowhere.
  UniqueFd status_directory{};
  /// Asked twice a second while CRIU restores; an error ends the restore. None: it goes on. Called
  /// by the thread that calls run().
  std::function<Status()> go_on{};
  /// None: new namespaces. A restore that fails once it has begun kills the container.
  std::optional<RestoreContainer> container{};
};

/// Of processes, by their PIDs in their PID namespace.
using Rights = std::map<pid_t, proto::Credentials>;

/// A CRIU that was started in new namespaces or in a container, and waits for the first of its
/// images; run() does the rest. Move-only. Destroying it before run() leaves nothing, or the
/// container as it was.
class PreparedRestore {
 public:
  /// The images will be files in `directory`, which exists; they may be written from now on.
  /// `used_pids` are the PIDs that the tree uses in its PID namespace, as far as they are known:
  /// CRIU's own processes avoid them.
  static Result<PreparedRestore> create(const Command& command,
                                        const std::filesystem::path& directory,
                                        const std::set<pid_t>& used_pids,
                                        RestoreOptions options = {});

  PreparedRestore(PreparedRestore&&) noexcept;
  PreparedRestore& operator=(PreparedRestore&&) noexcept;
  ~PreparedRestore();

  /// 1 MiB of a memory: of a process, by address, or `shared` by processes, by offset.
  struct Window {
    std::uint32_t memory;  ///< a number that the caller has given it
    bool shared;
    std::uint64_t offset;
    std::bitset<256> pages;  ///< that have come
  };

  /// Puts pages of memory in place before run(): see PrefilledMemory::place(), and
  /// PrefilledSharedMemory::place(). Any thread.
  Result<bool> place(const Window& window, std::span<const std::byte> bytes);

  /// Restores from the images that are in the directory now, and fills the memory that came
  /// separately (memory_filling.h) before any of the tasks runs. `members` have the rights with
  /// which CRIU opens and makes what each process has by name (in_criu_names.cc); zombies need
  /// none. `memories` are the names of the images that belong to each memory of which place() has
  /// taken anything. Once, blocking. Starts CRIU again if it has a PID that the tree needs. On
  /// failure nothing is left.
  Result<RestoredTree> run(const Rights& members,
                           const std::map<std::uint32_t, std::vector<std::string>>& memories = {});

  /// After run(): how much memory was put in place before it, and did not move any more.
  std::uint64_t taken_bytes() const;

 private:
  struct Impl;
  explicit PreparedRestore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gcr::criu
