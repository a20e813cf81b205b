// One run of CRIU: a child process, in the namespaces that the run needs. As `criu swrk` it takes
// requests on a socket; with other arguments it does what they say and ends.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "migrate-agent/criu/launch/command.h"
#include "migrate-agent/criu/launch/criu_rpc.pb.h"
#include "migrate-agent/criu/launch/launch.h"
#include "migrate-agent/criu/launch/plugin.h"
#include "migrate-agent/criu/launch/watchdog.h"
#include "migrate-agent/linux/procfs/mount_namespace.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {

struct LaunchPlan;

/// Owns one child process: its pidfd, and the duty to reap it.
class Child {
 public:
  Child() = default;
  Child(pid_t pid, UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}
  Child(Child&& other) noexcept { *this = std::move(other); }
  Child& operator=(Child&& other) noexcept {
    pid_ = std::exchange(other.pid_, 0);
    pidfd_ = std::move(other.pidfd_);
    return *this;
  }

  pid_t pid() const { return pid_; }
  /// -1 if there was no descriptor left for it.
  int pidfd() const { return pidfd_.get(); }
  explicit operator bool() const { return pid_ != 0; }

  /// Blocks until it has ended, and reaps it; its wait status, 0 if there is none to wait for.
  int wait();
  /// SIGKILL, then wait().
  void kill();
  /// Gives the child up: this process no longer waits for it.
  void forget() { *this = Child(); }

 private:
  pid_t pid_ = 0;
  UniqueFd pidfd_;
};

/// What a run in a container has besides.
struct InContainer {
  /// Of the PID namespace: PIDs up to this one are the job's.
  std::optional<pid_t> first_pid{};
  int streams[launch::kStreams] = {-1, -1, -1};  ///< become launch::kFirstStreamFd and the next
  int group_fd = -1;                             ///< becomes launch::kGroupFd
};

/// What a run may have besides its command; all of it is used only while CRIU is started.
struct LaunchOptions {
  /// The cgroup.procs of the control groups to start it in. None: the caller's.
  std::span<const UniqueFd> groups{};
  /// Null: CRIU loads no plugin.
  const Plugin* plugin = nullptr;
  int memory_fd = -1;  ///< becomes launch::kMemoryFd
  int hold_fd = -1;    ///< becomes launch::kHoldFd
  int status_fd = -1;  ///< becomes launch::kStatusFd, for in_new_namespaces()
  /// For in_namespaces_of(), if the process is in a container: CRIU also joins its network, UTS,
  /// IPC and cgroup namespaces, and a session keyring of its own.
  const InContainer* container = nullptr;
};

/// A running CRIU. Blocking; one thread at a time. `images` is the directory that CRIU finds as
/// launch::kImagesFd, `arguments` follow those that every run has. Destroying it closes the
/// sockets, and waits for CRIU if that is our own child: it ends with its work or its socket, and
/// is not killed. Destroying one of in_new_namespaces() before release_init() kills the namespace.
class Session {
 public:
  /// CRIU in the PID and mount namespaces of `pid`, if those are not the caller's own. It is still
  /// loaded from the caller's mount namespace, and reads nothing in the other one before
  /// procfs::check_view() has passed there, and procfs::check_view_of_gpus() if it has a plugin.
  /// kRefused if that does not pass.
  static Result<Session> in_namespaces_of(const Command& command,
                                          const std::vector<std::string>& arguments, pid_t pid,
                                          const std::filesystem::path& images,
                                          const LaunchOptions& options = {});

  /// CRIU in new PID and mount namespaces whose init is the command's reaper: all that CRIU forks
  /// ends with this process. CRIU's own PIDs come after `first_pid`.
  static Result<Session> in_new_namespaces(const Command& command,
                                           const std::vector<std::string>& arguments,
                                           pid_t first_pid, const std::filesystem::path& images,
                                           const LaunchOptions& options = {});

  Session(Session&&) noexcept = default;
  Session& operator=(Session&&) = delete;
  ~Session();

  /// Sends one request and waits for its answer. `success` in the answer is not checked.
  /// kInternal if CRIU ends without an answer, kTimeout after a minute.
  Result<wire::Response> call(const wire::Request& request);

  /// Waits until `fd` can be read (true) or CRIU has ended (false); kTimeout after a minute.
  Result<bool> wait_for(int fd);

  /// After in_namespaces_of(): from now on CRIU is ended if it does nothing for `patience`.
  Status end_when_still(std::chrono::milliseconds patience);

  /// Waits until CRIU itself is reaped; its wait status. kTimeout if end_when_still() ended it.
  Result<int> wait();

  /// Whether CRIU ends within `patience`, or has ended; also true as soon as `fd`, if there is one,
  /// can be read.
  bool ends_within(std::chrono::milliseconds patience, int fd = -1) const;

  /// The init of the new namespaces, as long as it was not released; after in_namespaces_of(), the
  /// process named there.
  pid_t init_pid() const { return init_ ? init_.pid() : target_; }

  /// After in_namespaces_of(): success if the process is still in the mount namespace that it was
  /// in then, and what CRIU sees there still passes; else kRefused.
  Status check_namespace() const;

  /// After in_namespaces_of(): ends a CRIU that has not touched any process yet.
  void kill() { criu_.kill(); }

  /// The init of the new namespaces; the caller owns it from here.
  Child release_init() { return std::move(init_); }

  /// The control socket of that init. If it closes before kReleased was sent, the init ends the
  /// namespace, so that an agent that dies leaves no restored process behind.
  UniqueFd release_control() { return std::move(control_); }

 private:
  Session() = default;
  Status start(const Command& command, const std::vector<std::string>& arguments,
               const std::filesystem::path& images, pid_t neighbour, const pid_t* first_pid,
               const LaunchOptions& options);
  Status fork_child(const LaunchPlan& plan);
  Result<int> hold_namespaces(pid_t pid);
  Status let_enter();
  Status check_view_of(pid_t pid) const;
  Status receive_rpc_socket();
  Error ended_silently();
  /// The agent's end of the RPC, the only descriptor that comes, becomes rpc_.
  Result<launch::ControlMessage> receive_control();

  UniqueFd control_;
  UniqueFd rpc_;
  Child criu_;  ///< our child: CRIU
  Child init_;  ///< our child: the reaper, whose child is CRIU
  pid_t target_ = 0;
  std::optional<procfs::MountNamespace> mounts_;  ///< of the target, since the start
  bool waits_inside_ = false;                     ///< CRIU says that it is in it
  bool entered_ = false;                          ///< and has been checked, and goes on
  bool has_plugin_ = false;
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace gcr::criu
