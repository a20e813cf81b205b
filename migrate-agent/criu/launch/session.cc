#include "migrate-agent/criu/launch/session.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>

#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/descriptor_passing.h"
#include "src/base/raw_bytes.h"
#include "src/base/session_keyring.h"
#include "src/base/socket_pair.h"

namespace gcr::criu {

/// Everything a child needs, prepared before the fork.
struct LaunchPlan {
  std::vector<const char*> argv;
  std::vector<const char*> variables;
  int control_fd = -1;
  int images_fd = -1;
  int target_pidfd = -1;
  launch::Inside inside;     ///< with `mounts` where CRIU has to work in namespaces of the target
  bool with_reaper = false;  ///< argv starts the reaper, in new namespaces
  std::span<const UniqueFd> groups;  ///< cgroup.procs of the groups that it joins
  bool in_container = false;
  std::string first_pid;  ///< in a container; empty: any
};

namespace {

namespace fs = std::filesystem;
using launch::ControlMessage;
using launch::Event;
using launch::Step;
using std::chrono::milliseconds;

constexpr std::size_t kMaxResponseBytes = 1u << 20;
/// CRIU's answers take a tenth of a second.
constexpr milliseconds kAnswerPatience = std::chrono::minutes(1);

/// What each step does, in the order of Step.
constexpr const char* kSteps[] = {
    "starting",
    "passing descriptors on",
    "entering the namespaces of the process",
    "forking",
    "separating the mounts of the new namespace",
    "mounting /proc in the new namespace",
    "mounting a tmpfs for removed files in the new namespace",
    "setting ns_last_pid in the new namespace",
    "joining the control group of the process",
    "making a socket pair",
    "executing the reaper",
    "executing CRIU",
    "loading its plugin",
    "leaving the agent's session keyring",
};
static_assert(std::size(kSteps) == static_cast<std::size_t>(Step::kKeyring) + 1);

Error failure_of(const ControlMessage& message) {
  const auto step = static_cast<std::size_t>(message.step);
  return Error::from_errno(message.value, std::string("cannot start CRIU, ") +
                                              kSteps[step < std::size(kSteps) ? step : 0]);
}

bool any_is_readable(int fd, int other, milliseconds patience) {
  pollfd watched[] = {{fd, POLLIN, 0}, {other, POLLIN, 0}};
  int ready = 0;
  while ((ready = ::poll(watched, 2, static_cast<int>(patience.count()))) < 0 && errno == EINTR) {
  }
  return ready > 0;
}

pid_t raw_fork(unsigned long flags) {
  return static_cast<pid_t>(::syscall(SYS_clone, flags | SIGCHLD, nullptr, nullptr, nullptr, 0));
}

/// In the forked child.
void join_groups(const LaunchPlan& plan) {
  for (const UniqueFd& group : plan.groups) {
    if (::write(group.get(), "0", 1) != 1) launch::fail_and_exit(plan.control_fd, Step::kJoinGroup);
  }
}

/// In the forked child: joins the target's PID namespace; the process in it, CRIU, becomes a child
/// of our parent, which learns its PID. CRIU enters the mount namespace by itself, when it and all
/// its libraries are loaded.
[[noreturn]] void join_and_exec(const LaunchPlan& plan) {
  constexpr int kOfContainer = CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWCGROUP;
  const int others = plan.in_container ? kOfContainer : 0;
  if (::setns(plan.target_pidfd, CLONE_NEWPID | others) != 0) {
    launch::fail_and_exit(plan.control_fd, Step::kEnterNamespaces);
  }
  const pid_t pid = raw_fork(CLONE_PARENT);
  if (pid < 0) launch::fail_and_exit(plan.control_fd, Step::kFork);
  if (pid > 0) {
    launch::send_control(plan.control_fd, {Event::kStarted, Step::kNone, pid});
    ::_exit(0);
  }
  if (plan.in_container && !leave_session_keyring()) {
    launch::fail_and_exit(plan.control_fd, Step::kKeyring);
  }
  if (!plan.first_pid.empty() && !launch::number_after(plan.first_pid.c_str())) {
    launch::fail_and_exit(plan.control_fd, Step::kFirstPid);
  }
  launch::exec_criu(plan.argv.data(), plan.variables.data(), plan.control_fd, plan.images_fd,
                    plan.inside);
}

[[noreturn]] void exec_reaper(const LaunchPlan& plan) {
  const int control = ::fcntl(plan.control_fd, F_DUPFD_CLOEXEC, launch::kStatusFd + 1);
  if (!launch::arrange_descriptors(plan.control_fd, plan.images_fd, plan.inside)) {
    launch::fail_and_exit(control, Step::kDescriptors);
  }
  ::execve(plan.argv[0], const_cast<char* const*>(plan.argv.data()),
           const_cast<char* const*>(plan.variables.data()));
  launch::fail_and_exit(control, Step::kExecReaper);
}

/// The images directory, in which there is one for plugins then.
Result<UniqueFd> open_images(const fs::path& path, bool with_plugin) {
  UniqueFd images(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!images) return Error::from_errno(errno, "cannot open the images directory " + path.string());
  const char* const name = with_plugin ? launch::kPluginDirectory : launch::kNoPlugins;
  const std::string plugin = fmt::format("/proc/self/fd/{}", launch::kPluginFd);
  if ((::mkdirat(images.get(), name, 0700) == 0 || errno == EEXIST) &&
      (!with_plugin || ::symlinkat(plugin.c_str(), images.get(), launch::kPluginLink) == 0 ||
       errno == EEXIST)) {
    return images;
  }
  return Error::from_errno(errno, "cannot make a directory in the images directory");
}

/// The full path of a program: the child has another working directory.
Result<std::string> resolve(const std::string& program) {
  std::error_code error;
  if (program.find('/') != std::string::npos) return fs::absolute(program, error).string();
  const char* path = ::getenv("PATH");
  std::string rest = path != nullptr ? path : "/usr/sbin:/usr/bin:/sbin:/bin";
  for (std::size_t at = 0; at <= rest.size();) {
    const std::size_t end = std::min(rest.find(':', at), rest.size());
    const fs::path candidate = fs::path(rest.substr(at, end - at)) / program;
    if (::access(candidate.c_str(), X_OK) == 0) return fs::absolute(candidate, error).string();
    at = end + 1;
  }
  return Error(Code::kNotFound, program + " is not in the PATH");
}

Result<std::vector<std::string>> full_command(const Command& command,
                                              const std::vector<std::string>& arguments,
                                              const char* plugins) {
  if (command.argv.empty()) return Error(Code::kInvalidArgument, "no command for CRIU");
  std::vector<std::string> argv = command.argv;
  GCR_ASSIGN(argv[0], resolve(argv[0]));
  argv.insert(argv.end(), {"--no-default-config", "--libdir", plugins});
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

Result<UniqueFd> open_library(const Command& command) {
  GCR_ASSIGN(const std::string reaper, resolve(command.reaper.string()));
  const fs::path path = fs::path(reaper).parent_path() / "gcr-in-criu.so";
  UniqueFd library(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!library) return Error::from_errno(errno, "cannot open " + path.string());
  return library;
}

}  // namespace

int Child::wait() {
  if (pid_ == 0) return 0;
  int status = 0;
  while (::waitpid(pid_, &status, __WALL) < 0 && errno == EINTR) {
  }
  forget();
  return status;
}

void Child::kill() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);  // the PID of a child that was not waited for is not reused
  wait();
}

Session::~Session() {
  control_.reset();
  rpc_.reset();
  init_.kill();
  criu_.wait();
}

Result<Session> Session::in_namespaces_of(const Command& command,
                                          const std::vector<std::string>& arguments, pid_t pid,
                                          const fs::path& images, const LaunchOptions& options) {
  Session session;
  const Status started = session.start(command, arguments, images, pid, nullptr, options);
  if (started) return session;
  session.kill();
  return started.error();
}

Result<Session> Session::in_new_namespaces(const Command& command,
                                           const std::vector<std::string>& arguments,
                                           pid_t first_pid, const fs::path& images,
                                           const LaunchOptions& options) {
  Session session;
  GCR_TRY(session.start(command, arguments, images, 0, &first_pid, options));
  return session;
}

Status Session::start(const Command& command, const std::vector<std::string>& arguments,
                      const fs::path& images, pid_t neighbour, const pid_t* first_pid,
                      const LaunchOptions& options) {
  LaunchPlan plan;
  plan.groups = options.groups;
  has_plugin_ = options.plugin != nullptr;
  plan.inside = {.memory = options.memory_fd,
                 .hold = options.hold_fd,
                 .plugin = has_plugin_ ? options.plugin->fd() : -1,
                 .status = options.status_fd};
  if (options.container != nullptr) {
    plan.in_container = true;
    if (options.container->first_pid)
      plan.first_pid = std::to_string(*options.container->first_pid);
    std::ranges::copy(options.container->streams, plan.inside.streams);
    plan.inside.group = options.container->group_fd;
  }
  GCR_ASSIGN(std::vector<std::string> full,
             full_command(command, arguments,
                          has_plugin_ ? launch::kPluginDirectory : launch::kNoPlugins));
  if (first_pid != nullptr) {
    GCR_ASSIGN(const std::string program, resolve(command.reaper.string()));
    full.insert(full.begin(), {program, std::to_string(*first_pid)});
  }
  GCR_ASSIGN(const UniqueFd directory, open_images(images, has_plugin_));
  UniqueFd target;
  if (neighbour != 0) {
    GCR_ASSIGN(target, procfs::open_pidfd(neighbour));
    GCR_ASSIGN(plan.inside.mounts, hold_namespaces(neighbour));
  }
  UniqueFd library;
  if (plan.inside.mounts >= 0 || plan.inside.memory >= 0 || plan.inside.hold >= 0 || has_plugin_) {
    GCR_ASSIGN(library, open_library(command));
  }
  GCR_ASSIGN(SocketPair pair, SocketPair::create("CRIU"));
  control_ = std::move(pair.ours);
  for (const std::string& argument : full) plan.argv.push_back(argument.c_str());
  plan.argv.push_back(nullptr);
  if (has_plugin_) {
    for (const std::string& variable : command.plugin_environment) {
      plan.variables.push_back(variable.c_str());
    }
  }
  plan.variables.push_back(nullptr);
  plan.control_fd = pair.theirs.get();
  plan.images_fd = directory.get();
  plan.target_pidfd = target.get();
  plan.inside.library = library.get();
  plan.with_reaper = first_pid != nullptr;
  GCR_TRY(fork_child(plan));
  pair.theirs.reset();  // so that their end is noticed here
  GCR_TRY(receive_rpc_socket());
  return plan.inside.mounts >= 0 ? let_enter() : Status();
}

/// The mount namespace of `pid`, if CRIU has to enter namespaces of it; else -1.
Result<int> Session::hold_namespaces(pid_t pid) {
  target_ = pid;
  GCR_ASSIGN(mounts_, procfs::MountNamespace::of(pid));
  const bool ours = mounts_->is_that_of(::getpid());
  if (ours && procfs::namespace_link(pid, "pid") == procfs::namespace_link(::getpid(), "pid")) {
    return -1;
  }
  if (!ours) GCR_TRY(mounts_->check_owner());
  return mounts_->fd();
}

/// CRIU is loaded, and waits inside the namespace before it reads anything there.
Status Session::let_enter() {
  if (!waits_inside_) {
    GCR_ASSIGN(const ControlMessage message, receive_control());
    if (message.event == Event::kFailed) return failure_of(message);
    waits_inside_ = message.event == Event::kEntered;
  }
  if (!waits_inside_ || !mounts_->is_that_of(criu_.pid())) {
    return Error(Code::kInternal, "CRIU is not in the mount namespace of the process");
  }
  GCR_TRY(check_view_of(criu_.pid()));
  launch::send_control(control_.get(), {Event::kMayGoOn});
  entered_ = true;
  return {};
}

Status Session::check_view_of(pid_t pid) const {
  GCR_TRY(procfs::check_view(pid));
  return has_plugin_ ? procfs::check_view_of_gpus(pid) : Status();
}

Status Session::check_namespace() const {
  if (!mounts_->is_that_of(target_)) {
    return Error(Code::kRefused, "the process has left its mount namespace since CRIU was started");
  }
  return entered_ ? check_view_of(target_) : Status();
}

Status Session::fork_child(const LaunchPlan& plan) {
  const pid_t pid = raw_fork(plan.with_reaper ? CLONE_NEWPID | CLONE_NEWNS : 0);
  if (pid < 0) return Error::from_errno(errno, "cannot fork a process for CRIU");
  if (pid == 0) {
    join_groups(plan);
    if (plan.with_reaper) exec_reaper(plan);
    if (plan.inside.mounts >= 0) join_and_exec(plan);
    launch::exec_criu(plan.argv.data(), plan.variables.data(), plan.control_fd, plan.images_fd,
                      plan.inside);
  }
  Child child(pid, procfs::pidfd_of_child(pid));
  if (child.pidfd() < 0) {
    const int error = errno;
    child.kill();
    return Error::from_errno(error, "cannot hold CRIU's process");
  }
  if (plan.inside.mounts >= 0) {
    child.wait();  // it only started CRIU
  } else {
    (plan.with_reaper ? init_ : criu_) = std::move(child);
  }
  return {};
}

Result<ControlMessage> Session::receive_control() {
  ControlMessage message{};
  if (!any_is_readable(control_.get(), -1, kAnswerPatience)) {
    return Error(Code::kTimeout, "the process that starts CRIU does not answer");
  }
  int descriptor = -1;
  const ReceivedMessage got = receive_with_descriptors(control_.get(), writable_bytes_of(message),
                                                       {&descriptor, 1}, MSG_DONTWAIT);
  if (got.length < 0) {
    return Error::from_errno(errno, "cannot hear from the process that starts CRIU");
  }
  if (descriptor >= 0) rpc_.reset(descriptor);
  if (got.length != sizeof(message)) {
    return Error(Code::kInternal, "CRIU's process ended before it was ready");
  }
  return message;
}

Status Session::receive_rpc_socket() {
  std::optional<Error> failure;
  // CRIU's PID may come after CRIU's own messages; it is needed in any case, to reap CRIU.
  while ((!rpc_ && !failure) || (!criu_ && !init_)) {
    const Result<ControlMessage> message = receive_control();
    if (!message) return failure ? *failure : message.error();
    if (message->event == Event::kRpcSocket && !rpc_) {
      failure = Error(Code::kResourceExhausted, "no descriptor is left for a line to CRIU");
    } else if (message->event == Event::kStarted) {
      criu_ = Child(message->value, procfs::pidfd_of_child(message->value));
      if (criu_.pidfd() < 0) failure = Error::from_errno(errno, "cannot hold CRIU's process");
    } else if (message->event == Event::kEntered) {
      waits_inside_ = true;
    } else if (message->event == Event::kFailed) {
      failure = failure_of(*message);
      if (message->step == Step::kJoinGroup || message->step == Step::kEnterNamespaces ||
          message->step == Step::kFork) {
        break;
      }
    }
  }
  if (failure) return *failure;
  return {};
}

Result<wire::Response> Session::call(const wire::Request& request) {
  const std::string bytes = request.SerializeAsString();
  if (::send(rpc_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) {
    if (errno == EPIPE || errno == ECONNRESET) return ended_silently();
    return Error::from_errno(errno, "cannot send a request to CRIU");
  }
  GCR_ASSIGN([[maybe_unused]] const bool answered, wait_for(rpc_.get()));
  RawBytes answer(kMaxResponseBytes);
  const ssize_t got = ::recv(rpc_.get(), answer.data(), answer.size(), MSG_DONTWAIT | MSG_TRUNC);
  if (got <= 0) return ended_silently();
  wire::Response response;
  if (static_cast<std::size_t>(got) > answer.size() ||
      !response.ParseFromArray(answer.data(), static_cast<int>(got))) {
    return Error(Code::kInternal, "CRIU's answer cannot be read");
  }
  return response;
}

Result<bool> Session::wait_for(int fd) {
  // CRIU's children hold copies of its sockets, so an end of file does not come with CRIU's death:
  // the control socket (from the reaper) and the pidfd tell of it.
  const int process = criu_ ? criu_.pidfd() : init_.pidfd();
  pollfd watched[] = {{fd, POLLIN, 0}, {process, POLLIN, 0}, {control_.get(), POLLIN, 0}};
  const nfds_t count = init_ ? 3 : 2;
  int ready = 0;
  while ((ready = ::poll(watched, count, static_cast<int>(kAnswerPatience.count()))) < 0) {
    if (errno != EINTR) return Error::from_errno(errno, "cannot wait for CRIU");
  }
  if (ready == 0) return Error(Code::kTimeout, "CRIU does not answer");
  return watched[0].revents != 0;
}

/// A failed exec says so on the control socket, which is otherwise at its end.
Error Session::ended_silently() {
  const Result<ControlMessage> message = receive_control();
  if (message && message->event == Event::kFailed) return failure_of(*message);
  return Error(Code::kInternal, "CRIU ended without an answer");
}

bool Session::ends_within(milliseconds patience, int fd) const {
  // A CRIU that has entered a namespace has closed the control socket.
  return any_is_readable(entered_ ? criu_.pidfd() : control_.get(), fd, patience);
}

Status Session::end_when_still(milliseconds patience) {
  GCR_ASSIGN(auto criu, procfs::Process::open(criu_.pid()));
  watchdog_ = std::make_unique<Watchdog>(std::move(criu), patience);
  return {};
}

Result<int> Session::wait() {
  std::optional<int> status;
  if (criu_) {
    status = criu_.wait();
    const auto watchdog = std::move(watchdog_);
    if (watchdog && watchdog->end()) {
      return Error(Code::kTimeout, "CRIU made no progress and was killed");
    }
  }
  const Result<ControlMessage> message = receive_control();  // as in ended_silently()
  if (message && message->event == Event::kFailed) return failure_of(*message);
  if (status) return *status;
  GCR_TRY(message);
  return message->value;
}

}  // namespace gcr::criu
