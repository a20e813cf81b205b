#include "migrate-agent/process/slurm/step.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <regex>
#include <thread>
#include <vector>

#include "migrate-agent/linux/cgroups/hierarchy.h"
#include "migrate-agent/process/slurm/adopter.h"
#include "src/base/unique_fd.h"

namespace gcr::slurm {
namespace {

using Clock = std::chrono::steady_clock;

/// Slurm answers within milliseconds.
constexpr std::chrono::seconds kPatience{20};
/// For so long a job may be said to run before its extern step is there.
constexpr std::chrono::seconds kStart{5};
constexpr std::chrono::milliseconds kPause{100};
constexpr std::size_t kMostOutput = 4096;

/// Starts the adopter with its output, of both kinds, going to `output`, and nothing else open.
Result<pid_t> start(std::vector<std::string>& words, int output) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  ::posix_spawn_file_actions_addchdir_np(&actions, "/");
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t signals;
  ::sigfillset(&signals);
  ::posix_spawnattr_setsigdefault(&attributes, &signals);
  ::sigemptyset(&signals);
  ::posix_spawnattr_setsigmask(&attributes, &signals);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  char* const environment[] = {nullptr};
  pid_t pid = 0;
  const int error =
      ::posix_spawn(&pid, words.front().c_str(), &actions, &attributes, argv.data(), environment);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) return Error::from_errno(error, "cannot start " + words.front());
  return pid;
}

/// All output, its beginning at least. False if it did not end in time.
bool read_output(int fd, std::string& text) {
  const auto deadline = Clock::now() + kPatience;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd watched{fd, POLLIN, 0};
    if (::poll(&watched, 1, static_cast<int>(left.count())) < 0) continue;
    if (watched.revents == 0) return false;
    char buffer[512];
    const ssize_t got = ::read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    if (text.size() < kMostOutput) text.append(buffer, static_cast<std::size_t>(got));
  }
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

Error failure_of(int status, const std::string& said) {
  const std::string what = said.empty() ? fmt::format("ended with wait status {}", status) : said;
  if (!WIFEXITED(status)) return Error(Code::kInternal, "gcr-slurm-adopt " + what);
  switch (static_cast<adopter::Exit>(WEXITSTATUS(status))) {
    case adopter::Exit::kNoLibrary:
      return Error(Code::kUnsupported, what);
    case adopter::Exit::kNoStep:
      return Error(Code::kNotFound, what);
    default:
      return Error(Code::kUnavailable, what);
  }
}

/// What the adopter says, which is one line.
Result<std::string> adopt(const Settings& settings, JobId job,
                          const std::vector<std::string>& more) {
  if (!settings.is_set()) {
    return Error(Code::kUnsupported, "agent.toml of this host has no slurm.node");
  }
  std::vector<std::string> words{settings.adopter, settings.library, settings.spool, settings.node,
                                 std::to_string(job)};
  words.insert(words.end(), more.begin(), more.end());
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Error::from_errno(errno, "cannot make a pipe");
  const UniqueFd output(ends[0]);
  UniqueFd input(ends[1]);
  GCR_ASSIGN(const pid_t pid, start(words, input.get()));
  input.reset();
  std::string said;
  const bool ended = read_output(output.get(), said);
  if (!ended) ::kill(pid, SIGKILL);
  const int status = wait_for(pid);
  while (!said.empty() && said.back() == '\n') said.pop_back();
  if (!ended) return Error(Code::kTimeout, "Slurm does not answer");
  if (status != 0) return failure_of(status, said);
  return said;
}

}  // namespace

Result<uid_t> owner_of_extern_step(const Settings& settings, JobId job) {
  const auto deadline = Clock::now() + kStart;
  auto said = adopt(settings, job, {});
  while (!said && said.error().code() == Code::kNotFound && Clock::now() < deadline) {
    std::this_thread::sleep_for(kPause);
    said = adopt(settings, job, {});
  }
  if (!said) return said.error();
  uid_t owner = 0;
  const auto [end, error] = std::from_chars(said->data(), said->data() + said->size(), owner);
  if (error == std::errc{} && end == said->data() + said->size()) return owner;
  return Error(Code::kInternal, fmt::format("gcr-slurm-adopt says \"{}\", not a user", *said));
}

Status join_extern_step(const Settings& settings, JobId job, uid_t owner,
                        std::span<const pid_t> processes) {
  std::vector<std::string> words{std::to_string(owner)};
  for (const pid_t pid : processes) words.push_back(std::to_string(pid));
  const auto said = adopt(settings, job, words);
  if (said) return {};
  return said.error().while_doing(
      fmt::format("{} processes cannot join Slurm's job {}", processes.size(), job));
}

std::optional<Step> step_of_group(const std::string& group) {
  static const std::regex kGroup(
      "/(?:slurm[^/]*/uid_[0-9]+|system\\.slice/[^/]*slurmstepd\\.scope)"
      "/job_([0-9]{1,10})/step_([^/]+)(?:/.*)?");
  std::smatch found;
  if (!std::regex_match(group, found, kGroup)) return std::nullopt;
  const unsigned long long job = std::stoull(found[1]);
  if (job == 0 || job > UINT32_MAX) return std::nullopt;
  return Step{static_cast<JobId>(job), found[2]};
}

std::optional<Step> step_of(pid_t pid) {
  for (const cgroups::Membership& membership : cgroups::memberships(pid)) {
    if (auto step = step_of_group(membership.group)) return step;
  }
  return std::nullopt;
}

}  // namespace gcr::slurm
