#include "migrate-agent/daemon/main/agent_main.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <spdlog/spdlog.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <asio/buffer.hpp>
#include <asio/io_context.hpp>
#include <asio/local/datagram_protocol.hpp>
#include <csignal>
#include <cstdlib>

#include "migrate-agent/daemon/listener/daemon.h"
#include "migrate-agent/daemon/listener/worker_process.h"
#include "migrate-agent/daemon/main/privileges.h"
#include "migrate-agent/daemon/main/worker.h"
#include "migrate-agent/linux/cgroups/group.h"
#include "migrate-agent/worker/config/check.h"
#include "migrate-agent/worker/config/config.h"
#include "src/base/log.h"
#include "src/base/session_keyring.h"
#include "src/base/version.h"
#include "src/control/control_channel.h"

namespace gcr::daemon {
namespace {

constexpr int kExitCannotStart = 1;
constexpr int kExitUsage = 2;
constexpr const char* kProgram = "migrate-agent";

struct Options {
  std::string config = worker::kDefaultConfigPath;
  int ready_fd = -1;
  bool check_config = false;
  bool worker = false;
  bool probe = false;
  std::string recover;
  std::vector<std::string> remove_groups;
};

void describe(CLI::App& app, Options& options) {
  app.description(
      "Moves running GPU processes from and to this host. Runs as a daemon; on SIGTERM it lets "
      "running migrations finish first. Under systemd use KillMode=process: migrated processes "
      "outlive the agent.");
  app.set_version_flag("--version",
                       fmt::format("{} {} ({})", kProgram, release(), source_commit()));
  app.add_option("--config", options.config, "The configuration file (TOML)")
      ->capture_default_str();
  app.add_flag("--check-config", options.check_config,
               "Check the configuration and all that it names, print every problem, and exit: 0 if "
               "there is none, else 2");
  app.add_option("--ready-fd", options.ready_fd,
                 "Write one line, \"listening on ADDRESS:PORT\", to this descriptor, then close it")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--worker", options.worker)->group("");  // for the daemon's own use
  app.add_option("--recover", options.recover)->group("");
  app.add_flag("--probe", options.probe)->group("");
  app.add_option("--remove-group", options.remove_groups)->group("");
}

/// Creates a directory with mode 0700: its content (images, journals) is private.
Status make_private_directory(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return {};
  std::filesystem::create_directories(path, error);
  if (error) return Error::from_errno(error.value(), "cannot make the directory " + path.string());
  std::filesystem::permissions(path, std::filesystem::perms::owner_all, error);
  if (error) return Error::from_errno(error.value(), "cannot protect " + path.string());
  return {};
}

void warn_unless_in_memory(const std::filesystem::path& path) {
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) return;
  if (info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC) return;
  spdlog::warn(
      "runtime_dir {} is not on tmpfs: images go through a disk and migrations take longer",
      path.string());
}

/// Notifies the service manager (sd_notify(3), Type=notify) that this agent accepts requests. Child
/// processes do not inherit the variable.
void notify_service_manager() {
  const char* const name = std::getenv("NOTIFY_SOCKET");
  if (name == nullptr || *name == '\0') return;
  std::string path = name;
  if (path.front() == '@') path.front() = '\0';
  asio::io_context io;
  asio::local::datagram_protocol::socket socket(io);
  std::error_code failed;
  socket.open({}, failed);
  if (!failed) socket.send_to(asio::buffer("READY=1", 7), {path}, 0, failed);
  if (failed)
    spdlog::warn("cannot notify the service manager that this agent is ready: {}",
                 failed.message());
  ::unsetenv("NOTIFY_SOCKET");
}

Status announce(const std::string& where, int ready_fd) {
  spdlog::info("listening on {}", where);
  notify_service_manager();
  if (ready_fd < 0) return {};
  const UniqueFd fd(ready_fd);
  const std::string line = fmt::format("listening on {}\n", where);
  if (::write(fd.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return Error::from_errno(errno, fmt::format("cannot write to --ready-fd {}", ready_fd));
  }
  return {};
}

Status run_daemon(const Options& options, const worker::Config& config, int own_arguments) {
  if (!leave_session_keyring()) {
    return Error::from_errno(errno, "cannot leave the session keyring that this agent inherited");
  }
  GCR_TRY(make_private_directory(config.state_dir));
  GCR_TRY(make_private_directory(config.runtime_dir));
  warn_unless_in_memory(config.runtime_dir);
  for (const std::string& warning : worker::warnings_of(config)) spdlog::warn("{}", warning);
  GCR_ASSIGN(std::vector<std::string> command, self_command(own_arguments));
  command.insert(command.end(), {"--worker", "--config", options.config});
  asio::io_context io(1);
  GCR_ASSIGN(const std::string where, start_daemon(io, config, std::move(command)));
  GCR_TRY(drop_privileges(Part::kDaemon));
  GCR_TRY(announce(where, options.ready_fd));
  io.run();
  return {};
}

/// Prints every problem and warning on its own line. Returns the exit status, which warnings do not
/// affect.
int check_config(const Options& options, const worker::Config& config) {
  for (const std::string& warning : worker::warnings_of(config)) {
    fmt::print("{}: warning: {}\n", options.config, warning);
  }
  const std::vector<std::string> problems = worker::problems_of(config);
  for (const std::string& problem : problems) fmt::print("{}: {}\n", options.config, problem);
  if (!problems.empty()) return kExitUsage;
  fmt::print("{}: good\n", options.config);
  return 0;
}

int run(const Options& options, int own_arguments) {
  const Result<worker::Config> config = worker::load_config(options.config);
  if (!config) {
    fmt::print(stderr, "{}: {}\n", kProgram, config.error().message());
    return kExitUsage;
  }
  init_logging(kProgram, config->log_level);
  if (options.worker && options.probe) return run_probe(*config, UniqueFd(kWorkerDaemonFd));
  if (options.worker && !options.recover.empty()) {
    return run_recovery_worker(*config, UniqueFd(kWorkerDaemonFd), options.recover);
  }
  if (options.worker && !options.remove_groups.empty()) {
    cgroups::remove_empty(cgroups::hierarchies(), options.remove_groups);
    return 0;
  }
  if (options.worker) {
    return run_worker(*config, UniqueFd(kWorkerConnectionFd), UniqueFd(kWorkerDaemonFd));
  }
  if (options.check_config) return check_config(options, *config);
  if (const auto tls = control::make_tls_context(config->tls); !tls) {
    fmt::print(stderr, "{}: {}: {}\n", kProgram, options.config, tls.error().message());
    return kExitUsage;
  }
  if (options.ready_fd >= 0) ::fcntl(options.ready_fd, F_SETFD, FD_CLOEXEC);
  std::signal(SIGPIPE, SIG_IGN);
  if (const Status ran = run_daemon(options, *config, own_arguments); !ran) {
    spdlog::error("{}", ran.error().message());
    return kExitCannotStart;
  }
  return 0;
}

}  // namespace

int agent_main(int argc, char** argv) {
  Options options;
  CLI::App app;
  app.name(kProgram);
  describe(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  return run(options, argc - 1);
}

}  // namespace gcr::daemon
