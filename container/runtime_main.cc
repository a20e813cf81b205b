// gcr-runtime: an OCI runtime between a container engine and runc, crun or another one.
//
//   gcr-runtime [OPTION...] VERB [ARGUMENT...]   as the next runtime; `create` and `run` edit the
//                                                bundle's config.json first (spec.h, plan.h)
//   gcr-runtime precreate                        a hook of podman: reads a configuration from
//                                                standard input, writes the edited one
//
// It becomes the next runtime, with the same arguments and descriptors. Only for a container that
// receives a job does it wait for that: afterwards it reserves PIDs in the container, and records
// that it has received. A `create` that fails records nothing.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "container/bundle.h"
#include "container/command_line.h"
#include "container/last_pid.h"
#include "container/plan.h"
#include "container/report.h"
#include "container/runtime_config.h"
#include "container/spec.h"

namespace gcr::container {
namespace {

namespace fs = std::filesystem;

constexpr int kFailure = 1;  // as runc and crun

fs::path config_path() {
  const char* named = std::getenv(kConfigVariable);
  return named != nullptr && *named != '\0' ? named : kDefaultRuntimeConfig;
}

/// Executes the next runtime; returns only if that fails.
Error become(const fs::path& runtime, const std::vector<std::string>& words) {
  const std::string name = runtime.filename();
  std::vector<char*> arguments{const_cast<char*>(name.c_str())};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execv(runtime.c_str(), arguments.data());
  return Error::from_errno(errno, "cannot execute " + runtime.string());
}

/// Runs the next runtime; returns its exit status.
Result<int> run_next(const fs::path& runtime, const std::vector<std::string>& words) {
  const pid_t child = ::fork();
  if (child < 0) return Error::from_errno(errno, "cannot create a process");
  if (child == 0) {
    fmt::print(stderr, "gcr-runtime: {}\n", become(runtime, words).message());
    ::_exit(kFailure);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return Error::from_errno(errno, "cannot wait for " + runtime.string());
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string about(const std::string& container, const std::string& note) {
  return fmt::format("container {}: {}", container, note);
}

/// The one command that this process carries out.
class Runtime {
 public:
  Runtime(CommandLine command, RuntimeConfig config)
      : command_(std::move(command)), config_(std::move(config)) {}

  /// Returns an exit status, or why the command failed; not at all if it becomes the next runtime.
  Result<int> run() {
    GCR_ASSIGN(const fs::path next, next_runtime(config_));
    if (!command_.creates()) return become(next, command_.words);
    GCR_ASSIGN(const bool receives, edit());
    return receives ? create_receiver(next) : become(next, command_.words);
  }

 private:
  /// Edits the configuration; returns whether the container receives a job.
  Result<bool> edit() const {
    const fs::path path = command_.spec_path();
    GCR_ASSIGN(const std::string text, read_file(path));
    auto spec = parse_spec(text);
    if (!spec) return spec.error().while_doing(path.string());
    auto plan = plan_container(*spec, command_.bundle, config_);
    if (!plan) return plan.error().while_doing("container " + command_.container);
    if (plan->receives && command_.verb() == "run" && !command_.detach) {
      return Error(Code::kUnsupported, about(command_.container,
                                             "it cannot receive a job in the foreground: use "
                                             "`create`, or `run --detach`"));
    }
    if (!plan->note.empty()) log_line(config_.log, about(command_.container, plan->note));
    if (!plan->insertion) return false;
    insert(*spec, *plan->insertion);
    GCR_TRY(replace_file(path, spec->dump()));
    return plan->receives;
  }

  /// Makes room for the job's PIDs before any other process of the container can take them.
  Result<int> create_receiver(const fs::path& next) {
    const bool own_file = command_.pid_file.empty();
    if (own_file) command_.add_pid_file(fs::absolute(command_.bundle) / "gcr-runtime.pid");
    const auto status = run_next(next, command_.words);
    if (!status || *status != 0) return status;
    const Status done = make_room();
    if (own_file) ::unlink(command_.pid_file.c_str());
    if (done) return 0;
    // Its engine must not start a container that no job can be restored in.
    (void)run_next(next, command_.deletion());
    return done.error().while_doing("container " + command_.container);
  }

  Status make_room() const {
    GCR_ASSIGN(const pid_t init, read_pid_file(command_.pid_file));
    return raise_last_pid(init);
  }

  CommandLine command_;
  RuntimeConfig config_;
};

int run_command(std::vector<std::string> words) {
  const CommandLine command = parse_command_line(std::move(words));
  auto config = load_runtime_config(config_path());
  if (!config) {
    if (command.creates()) {
      report_failure(command, {}, config.error().message());
      return kFailure;
    }
    // A wrong configuration must not keep a container from being stopped.
    log_line({}, config.error().message());
    config = RuntimeConfig();
  }
  const fs::path log = config->log;
  const auto status = Runtime(command, std::move(*config)).run();
  if (status) return *status;
  report_failure(command, log, status.error().message());
  return kFailure;
}

Result<std::string> edited(const std::string& text, const RuntimeConfig& config) {
  GCR_ASSIGN(Spec spec, parse_spec(text));
  if (!out_of_scope(spec)) {
    GCR_ASSIGN(const auto key, receive_key(spec));
    if (key) {
      return Error(Code::kUnsupported,
                   "a hook cannot make a container that receives a job: use --runtime gcr-runtime");
    }
  }
  GCR_ASSIGN(const Plan plan, plan_container(spec, ".", config));
  if (!plan.note.empty()) log_line(config.log, "precreate: " + plan.note);
  if (!plan.insertion) return text;
  insert(spec, *plan.insertion);
  return spec.dump();
}

Status precreate() {
  GCR_ASSIGN(const auto config, load_runtime_config(config_path()));
  GCR_ASSIGN(const std::string text, read_all(STDIN_FILENO));
  GCR_ASSIGN(const std::string result, edited(text, config));
  return write_all(STDOUT_FILENO, result);
}

int run_hook() {
  const Status done = precreate();
  if (done) return 0;
  fmt::print(stderr, "gcr-runtime: precreate: {}\n", done.error().message());
  return kFailure;
}

}  // namespace
}  // namespace gcr::container

int main(int argc, char** argv) try {
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 1 && words.front() == "precreate") return gcr::container::run_hook();
  return gcr::container::run_command(std::move(words));
} catch (const std::exception& error) {
  fmt::print(stderr, "gcr-runtime: internal error: {}\n", error.what());
  return 1;
}
