#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "src/base/executable.h"
#include "src/base/unique_fd.h"
#include "src/cli/command.h"
#include "src/cli/supervisor.h"

namespace gcr::cli {
namespace {

constexpr const char* kRunDescription =
    "gcr-migrate run [--output FILE [--detach] [--network NETWORK [--name NAME]]] -- COMMAND "
    "[ARGUMENT...]: start a command so that "
    "it can be migrated; without options sets LD_PRELOAD and nothing else";

constexpr const char* kRunFooter = R"(
The exit status is the command's; 125 if the preload library is missing, 126 or 127 if the command
cannot be started or found. GCR_PRELOAD names another libgcr-preload.so.

With --output the command runs below gcr-supervisor, whose PID is printed: migrate that. The
supervisor reopens FILE on SIGHUP (for logrotate), and passes SIGINT, SIGQUIT, SIGTERM, SIGUSR1
and SIGUSR2 on to the command. It ends when all processes of the job have ended.

With --network the job keeps its addresses, and so its connections, when it moves: by gcr-migrate
container migrate job:NAME SRC DST. NETWORK is macvlan:INTERFACE, ipvlan:INTERFACE or, for a port of
a bridge, bridge:INTERFACE, and then address=ADDRESS/LENGTH and gateway=ADDRESS, each after a comma;
of both families, if you like. It needs root, gcr-container and ip.)";

constexpr const char* kSlurmDescription =
    "gcr-migrate slurm JOBID [OPTION...]: move a Slurm job, like gcr-slurm migrate, which "
    "has more options";

constexpr const char* kContainerDescription =
    "gcr-migrate container [preflight] CONTAINER SRC DST [OPTION...]: move the job of a container, "
    "such as podman:NAME, into one of another host, or list what prevents that, like "
    "gcr-container, which has more options";

constexpr const char* kTurnsDescription =
    "gcr-migrate turns HOST JOB...: let jobs take turns on GPUs without room for all of them, like "
    "gcr-turns";

constexpr const char* kLibrary = "libgcr-preload.so";
constexpr const char* kSupervisor = "gcr-supervisor";
constexpr const char* kSeparators = ": ";  // of LD_PRELOAD

Result<std::filesystem::path> find_library() {
  const char* named = std::getenv("GCR_PRELOAD");
  std::error_code ignored;
  if (named != nullptr && *named != '\0') {
    const auto path = std::filesystem::absolute(named, ignored);
    if (std::filesystem::exists(path, ignored)) return path;
    return Error(Code::kNotFound, fmt::format("GCR_PRELOAD names {}, which does not exist", named));
  }
  GCR_ASSIGN(const auto program, executable_path());
  const auto prefix = program.parent_path().parent_path();
  for (const auto& folder : {prefix / "lib", prefix / "lib" / "gcr-migrate"}) {
    if (std::filesystem::exists(folder / kLibrary, ignored)) return folder / kLibrary;
  }
  return Error(
      Code::kNotFound,
      fmt::format("{} is neither in {} nor in its folder gcr-migrate; install it there, or "
                  "set GCR_PRELOAD to its path",
                  kLibrary, (prefix / "lib").string()));
}

/// Returns `existing` with `library` first, unless it is already listed.
std::string preload_list(const std::string& library, const char* existing) {
  if (existing == nullptr || *existing == '\0') return library;
  const std::string list = existing;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = std::min(list.find_first_of(kSeparators, at), list.size());
    if (list.compare(at, end - at, library) == 0) return list;
    at = end + 1;
  }
  return library + ":" + list;
}

/// Returns the supervisor's path: in this program's directory, or where packages install it.
Result<std::filesystem::path> find_supervisor() {
  GCR_ASSIGN(const auto program, executable_path());
  const auto folder = program.parent_path();
  std::error_code ignored;
  for (const auto& place : {folder, folder.parent_path() / "libexec" / "gcr-migrate"}) {
    if (std::filesystem::exists(place / kSupervisor, ignored)) return place / kSupervisor;
  }
  return Error(Code::kNotFound, fmt::format("{} is neither in {} nor in ../libexec/gcr-migrate",
                                            kSupervisor, folder.string()));
}

/// Sets LD_PRELOAD, so that programs that are started from now on run under the library.
Status preload_library() {
  GCR_ASSIGN(const auto library, find_library());
  if (library.string().find_first_of(kSeparators) != std::string::npos) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("LD_PRELOAD cannot hold the path {}: it has a space or a colon; copy the "
                    "library elsewhere and set GCR_PRELOAD",
                    library.string()));
  }
  const std::string list = preload_list(library.string(), std::getenv("LD_PRELOAD"));
  if (::setenv("LD_PRELOAD", list.c_str(), 1) == 0) return {};
  return Error::from_errno(errno, "cannot set LD_PRELOAD");
}

ExitCode fail_to_execute(const std::string& program, int error) {
  return fail(error == ENOENT ? ExitCode::kRunNotFound : ExitCode::kRunNotExecutable,
              fmt::format("cannot start {}: {}", program, std::strerror(error)));
}

/// Executes the command; returns only if that fails.
ExitCode become(const std::vector<std::string>& command) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  return fail_to_execute(command.front(), errno);
}

sigset_t passed_on() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int number : kPassedOn) ::sigaddset(&signals, number);
  return signals;
}

[[noreturn]] void fail_to_start(int started) {
  const NotStarted failure{false, errno};
  (void)!::write(started, &failure, sizeof failure);
  ::_exit(125);
}

void reset_signals() {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) ::sigaction(number, &action, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

/// Runs in the child: executes the supervisor. Closes descriptors that the caller's shell left
/// open, which would keep the job from moving.
[[noreturn]] void become_supervisor(char* const* words, int output, int started) {
  constexpr int kFree = kStartedFd + 1;
  ::setsid();
  reset_signals();
  const int target = ::fcntl(output, F_DUPFD, kFree);
  const int report = ::fcntl(started, F_DUPFD, kFree);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (target < 0 || report < 0 || nothing < 0 || ::dup2(nothing, STDIN_FILENO) < 0 ||
      ::dup2(target, STDOUT_FILENO) < 0 || ::dup2(target, STDERR_FILENO) < 0 ||
      ::dup2(report, kStartedFd) < 0 || ::syscall(SYS_close_range, kFree, ~0U, 0) != 0) {
    fail_to_start(started);
  }
  ::execv(words[0], words);
  fail_to_start(kStartedFd);
}

/// Reads the failure; 0 if the pipe was closed without one.
Result<int> read_failure(const UniqueFd& pipe) {
  NotStarted failure{};
  ssize_t got = 0;
  do got = ::read(pipe.get(), &failure, sizeof failure);
  while (got < 0 && errno == EINTR);
  if (got < 0) return Error::from_errno(errno, "cannot read whether the command has started");
  if (got == 0) return 0;
  if (!failure.command_found)
    return Error::from_errno(failure.error, "cannot start its supervisor");
  return failure.error;
}

/// A command below gcr-supervisor.
struct Supervised {
  pid_t pid = -1;  ///< of its supervisor: the job's root
  int error = 0;   ///< errno, if the command was not executed; then there is no process
};

/// Starts the command below the supervisor, which appends the job's output to the file. Returns
/// once the command has been executed or that has failed. Afterwards kPassedOn and SIGCHLD are
/// blocked in this process. The command gets our environment and working directory, default signal
/// handling and only the descriptors of its three streams. Returns an Error if the supervisor fails
/// before.
Result<Supervised> start_supervised(const std::string& output,
                                    const std::vector<std::string>& command) {
  GCR_ASSIGN(const auto supervisor, find_supervisor());
  const auto path = std::filesystem::absolute(output);
  const UniqueFd file(
      ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666));
  if (!file) return Error::from_errno(errno, "cannot open the output file " + path.string());
  std::vector<const char*> words = {supervisor.c_str(), path.c_str()};
  for (const std::string& word : command) words.push_back(word.c_str());
  words.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Error::from_errno(errno, "cannot create a pipe");
  const UniqueFd failure(ends[0]);
  UniqueFd started(ends[1]);
  sigset_t blocked = passed_on();
  ::sigaddset(&blocked, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) return Error::from_errno(errno, "cannot create a process");
  if (pid == 0) {
    become_supervisor(const_cast<char* const*>(words.data()), file.get(), started.get());
  }
  started.reset();
  const auto error = read_failure(failure);
  if (error && *error == 0) return Supervised{pid, 0};
  ::waitpid(pid, nullptr, 0);
  if (!error) return error.error();
  return Supervised{-1, *error};
}

/// Waits for the supervisor's end and passes signals on to it meanwhile; returns its status as
/// waitpid(2) does.
int await_supervised(pid_t supervisor) {
  sigset_t awaited = passed_on();
  ::sigaddset(&awaited, SIGCHLD);
  for (;;) {
    int status = 0;
    if (::waitpid(supervisor, &status, WNOHANG) == supervisor) return status;
    int number = 0;
    if (::sigwait(&awaited, &number) == 0 && number != SIGCHLD) ::kill(supervisor, number);
  }
}

/// Converts a status of waitpid(2) to an exit status like a shell does.
ExitCode exit_code_of(pid_t pid, int status) {
  if (WIFEXITED(status)) return static_cast<ExitCode>(WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  complain(fmt::format("process {} was ended by signal {}{}", pid, number,
                       number == SIGKILL ? " (a migrated process is killed at its source)" : ""));
  return static_cast<ExitCode>(128 + number);
}

struct RunOptions {
  std::string output;
  bool detach = false;
  std::string network;
  std::string name;
};

ExitCode supervise(const RunOptions& options, const std::vector<std::string>& command) {
  const auto started = start_supervised(options.output, command);
  if (!started) return fail(ExitCode::kRunOwnFailure, started.error().message());
  if (started->error != 0) return fail_to_execute(command.front(), started->error);
  fmt::print("{}\n", started->pid);
  std::fflush(stdout);
  if (options.detach) return ExitCode::kMigrated;
  return exit_code_of(started->pid, await_supervised(started->pid));
}

/// Executes one of our scripts from this program's directory or PATH; it calls this program again.
ExitCode become_script(const char* name, const std::vector<std::string>& words) {
  const auto own = executable_path();
  if (!own) return fail(ExitCode::kRunOwnFailure, own.error().message());
  ::setenv("GCR_CLI", own->c_str(), 0);
  const auto neighbour = own->parent_path() / name;
  std::error_code ignored;
  std::vector<std::string> command{std::filesystem::exists(neighbour, ignored) ? neighbour.string()
                                                                               : name};
  command.insert(command.end(), words.begin(), words.end());
  return become(command);
}

ExitCode start_with_network(const RunOptions& options, const std::vector<std::string>& command) {
  std::vector<std::string> words{"run", "--network", options.network, "--output", options.output};
  if (!options.name.empty()) words.insert(words.end(), {"--name", options.name});
  if (options.detach) words.emplace_back("--detach");
  words.emplace_back("--");
  words.insert(words.end(), command.begin(), command.end());
  return become_script("gcr-container", words);
}

ExitCode start(const RunOptions& options, const std::vector<std::string>& command) {
  if (command.empty()) return wrong_usage("run needs a command: gcr-migrate run -- COMMAND");
  if (!options.network.empty()) return start_with_network(options, command);
  if (const Status preloaded = preload_library(); !preloaded) {
    return fail(ExitCode::kRunOwnFailure, preloaded.error().message());
  }
  return options.output.empty() ? become(command) : supervise(options, command);
}

ExitCode move_slurm_job(std::vector<std::string> words) {
  words.insert(words.begin(), "migrate");
  return become_script("gcr-slurm", words);
}

/// The verb of gcr-container may follow options that came before the command; ENGINE:NAME comes
/// after it.
ExitCode move_container(std::vector<std::string> words) {
  const auto verb = std::ranges::find_if(
      words, [](const std::string& word) { return word == "migrate" || word == "preflight"; });
  const auto name = std::ranges::find_if(words, [](const std::string& word) {
    return !word.starts_with('-') && word.find(':') != word.npos;
  });
  if (verb < name) {
    std::rotate(words.begin(), verb, std::next(verb));
  } else {
    words.insert(words.begin(), "migrate");
  }
  return become_script("gcr-container", words);
}

}  // namespace

void add_run(CLI::App& app, Commands& commands, const std::vector<std::string>& after_mark) {
  CLI::App* run = app.add_subcommand("run", kRunDescription);
  run->footer(kRunFooter);
  run->prefix_command();
  const auto options = std::make_shared<RunOptions>();
  CLI::Option* output =
      run->add_option("--output", options->output,
                      "Start it in its own session, without a terminal, and append its "
                      "output to this file; print the PID to migrate")
          ->option_text("FILE");
  run->add_flag("--detach", options->detach, "Do not wait for the command to end")->needs(output);
  CLI::Option* network =
      run->add_option("--network", options->network,
                      "Give it a network of its own, such as "
                      "macvlan:eth0,address=192.0.2.10/24,gateway=192.0.2.1; print job:NAME for "
                      "gcr-migrate container")
          ->option_text("NETWORK")
          ->needs(output);
  run->add_option("--name", options->name, "Of such a job (default: of its program)")
      ->option_text("NAME")
      ->needs(network);
  commands[run] = [run, options, &after_mark] {
    std::vector<std::string> command = run->remaining();
    command.insert(command.end(), after_mark.begin(), after_mark.end());
    return start(*options, command);
  };
}

void add_slurm(CLI::App& app, Commands& commands) {
  CLI::App* slurm = app.add_subcommand("slurm", kSlurmDescription);
  slurm->prefix_command();
  commands[slurm] = [slurm] { return move_slurm_job(slurm->remaining()); };
}

void add_turns(CLI::App& app, Commands& commands) {
  CLI::App* turns = app.add_subcommand("turns", kTurnsDescription);
  turns->prefix_command();
  commands[turns] = [turns] { return become_script("gcr-turns", turns->remaining()); };
}

void add_container(CLI::App& app, Commands& commands) {
  CLI::App* container = app.add_subcommand("container", kContainerDescription);
  container->prefix_command();
  commands[container] = [container] { return move_container(container->remaining()); };
}

}  // namespace gcr::cli
