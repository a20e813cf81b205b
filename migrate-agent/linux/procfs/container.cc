#include "migrate-agent/linux/procfs/container.h"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <thread>
#include <vector>

#include "container/messages.h"
#include "migrate-agent/linux/procfs/directory.h"
#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::procfs {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kOrderPatience{10};
constexpr int kPollMs = 1;

std::string proc_file(pid_t pid, const char* name) { return fmt::format("/proc/{}/{}", pid, name); }

/// Whether it is the first process of a PID namespace below the caller's.
bool is_init_of_namespace(pid_t pid) {
  const auto numbers = namespace_pids(std::to_string(pid));
  return numbers.size() > 1 && numbers.back() == 1;
}

/// The words of its command line.
std::vector<std::string> words_of(pid_t pid) {
  std::istringstream text(read_text(proc_file(pid, "cmdline")));
  std::vector<std::string> words;
  for (std::string word; std::getline(text, word, '\0');) words.push_back(word);
  return words;
}

Error refused(const Process& init, const std::string& why) {
  return Error(Code::kRefused, fmt::format("process {} cannot receive a job: {}", init.pid(), why));
}

/// Whether the order waits to be taken. The kernel has it pending for the whole process.
bool is_pending(pid_t pid) {
  const std::uint64_t pending = status_bits(std::to_string(pid), "ShdPnd");
  return (pending >> (container::kOrderSignal - 1) & 1) != 0;
}

}  // namespace

Result<std::optional<Container>> Container::of_root(pid_t root) {
  const auto stat = read_stat(root);
  if (!stat) return Error(Code::kNotFound, fmt::format("there is no process {}", root));
  std::error_code error;
  if (!is_init_of_namespace(stat->parent) ||
      namespace_link(stat->parent, "pid") != namespace_link(root, "pid") ||
      fs::read_symlink(proc_file(stat->parent, "exe"), error) != container::kInitPath) {
    return std::optional<Container>();
  }
  GCR_ASSIGN(Process init, Process::open(stat->parent));
  const auto again = read_stat(root);
  if (!again || again->parent != init.pid()) {
    return Error(Code::kNotFound, fmt::format("process {} has lost its container", root));
  }
  return std::optional<Container>(std::move(init));
}

bool Container::allows_userfaultfd(pid_t root) {
  const auto words = words_of(root);
  return words.size() > 1 && words[0] == container::kInitPath &&
         words[1] == container::kModeRunTracked;
}

Status Container::check_waits(const std::string& program, const std::string& key) const {
  const pid_t pid = init_.pid();
  if (!is_init_of_namespace(pid)) {
    return refused(init_, "it is not the first process of a container");
  }
  if (namespace_link(pid, "user") != namespace_link(::getpid(), "user")) {
    return refused(init_, "its container has a user namespace of its own");
  }
  const FileId running = id_of(proc_file(pid, "exe"));
  if (running == FileId() || running != id_of(program)) {
    return refused(init_, fmt::format("it does not execute {}", program));
  }
  const auto words = words_of(pid);
  if (words.size() < 3 || words[1] != container::kModeReceive || words[2] != key) {
    return refused(init_, "it does not wait with this key");
  }
  return init_.send(0);  // what was read is of this process
}

Status Container::inside(const std::function<Status()>& work) const {
  own_proc();
  Status done;
  std::thread([&] {
    if (::unshare(CLONE_FS) != 0 ||
        ::setns(init_.pidfd(), CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC) != 0) {
      done = Error::from_errno(
          errno, fmt::format("cannot enter the container of process {}", init_.pid()));
      return;
    }
    done = work();
  }).join();
  return done;
}

std::set<pid_t> Container::used_pids() const {
  std::set<pid_t> used;
  const std::string own = namespace_link(init_.pid(), "pid");
  for (const pid_t pid : processes()) {
    if (own.empty() || namespace_link(pid, "pid") != own) continue;
    for (const pid_t tid : threads(pid)) {
      const auto numbers = namespace_pids(fmt::format("{}/task/{}", pid, tid));
      if (!numbers.empty()) used.insert(numbers.back());
    }
  }
  return used;
}

Status Container::order(int value) const {
  siginfo_t info{};
  info.si_signo = container::kOrderSignal;
  info.si_code = SI_QUEUE;
  info.si_pid = ::getpid();
  info.si_uid = ::getuid();
  info.si_value.sival_int = value;
  const auto end = std::chrono::steady_clock::now() + kOrderPatience;
  if (::syscall(SYS_pidfd_send_signal, init_.pidfd(), info.si_signo, &info, 0) != 0) {
    if (errno == ESRCH) return {};
    return Error::from_errno(errno, fmt::format("cannot signal process {}", init_.pid()));
  }
  while (!init_.has_ended() && is_pending(init_.pid())) {
    if (std::chrono::steady_clock::now() > end) {
      return Error(Code::kTimeout,
                   fmt::format("process {}, the init of the container, has not taken an order "
                               "within 10 s",
                               init_.pid()));
    }
    ::poll(nullptr, 0, kPollMs);
  }
  return {};
}

}  // namespace gcr::procfs
