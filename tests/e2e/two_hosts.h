// Two hosts for a test: scripts/hosts, and operations on them. Every process, namespace, mount and
// file of the hosts is removed with the object.
#pragma once

#include <google/protobuf/struct.pb.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/control.pb.h"
#include "tests/e2e/command.h"

namespace gcr::e2e {

enum class Host { kA, kB };

inline Host other(Host host) { return host == Host::kA ? Host::kB : Host::kA; }

/// Exit statuses of gcr-migrate.
inline constexpr int kFailedExit = 1;
inline constexpr int kRefusedExit = 3;
inline constexpr int kUnreachableExit = 4;

/// For events that follow at once: only a failing test waits this long.
inline constexpr Milliseconds kPatience{120'000};

/// The output of gcr-migrate.
struct MigrateOutcome {
  int exit_code = -1;
  std::string out;
  std::string err;
  pid_t pid = -1;  ///< where it migrated: its new PID
  std::uint64_t vram_bytes = 0;
  double downtime_ms = 0;
  double total_ms = 0;
  bool verified = false;
  int processes = 0;

  bool migrated() const { return exit_code == 0 && verified; }
};

/// The whole report of `gcr-migrate --json`.
struct MigrateReport {
  int exit_code = -1;
  std::string err;
  proto::MigrateReport report;
};

/// The resources that a host holds: equal before and after an operation that must leave nothing
/// behind.
struct HostUse {
  std::uint64_t vram_bytes = 0;     ///< used on its software GPUs
  std::uint64_t runtime_bytes = 0;  ///< in the agent's runtime directory: images
  std::uint64_t workers = 0;        ///< processes of the agent that do not end
  std::uint64_t processes = 0;      ///< others in the host's network namespace

  bool operator==(const HostUse&) const = default;
};

std::ostream& operator<<(std::ostream& out, const HostUse& use);

/// A program that was started on a host under the preload library (or, on request, without).
class App {
 public:
  App(std::string output_path, std::unique_ptr<Program> program)
      : output_path_(std::move(output_path)), program_(std::move(program)) {}

  /// The process that was started; after a migration the outcome has the new PID.
  pid_t pid() const { return program_->pid(); }
  Program& program() { return *program_; }
  std::string output() const { return read_file(output_path_); }
  const std::string& output_path() const { return output_path_; }
  std::vector<std::string> lines() const;

  /// Waits until at least `count` complete lines exist.
  bool wait_for_lines(std::size_t count, Milliseconds timeout = kHangs) const;

 private:
  std::string output_path_;
  std::unique_ptr<Program> program_;
};

class TwoHosts {
 public:
  /// `options` of `scripts/hosts up`. Throws std::runtime_error if it fails.
  explicit TwoHosts(const std::vector<std::string>& options = {});
  ~TwoHosts();
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  /// A value of DIR/env: variable("IP", Host::kA) is IP_A.
  std::string variable(const std::string& name) const;
  std::string variable(const std::string& name, Host host) const;
  std::string address(Host host) const { return variable("IP", host); }
  const std::string& directory() const { return directory_; }
  std::string directory(Host host) const;
  /// The name of its network namespace, for ip(8).
  std::string network(Host host) const;
  std::string program_path(const std::string& name) const;

  /// COMMAND with the prefix of a program on that host: namespace and GPU environment.
  std::vector<std::string> on_host(Host host, const std::vector<std::string>& command) const;

  /// Starts a program under `gcr-migrate run`, or bare.
  App start_app(Host host, const std::vector<std::string>& command, bool under_preload = true);

  /// The `gcr-migrate … FROM TO PID` command with the operator's certificate, and these options.
  std::vector<std::string> migrate_command(Host from, Host to, pid_t pid,
                                           const std::vector<std::string>& options = {}) const;
  MigrateOutcome migrate(Host from, pid_t pid, const std::vector<std::string>& options = {}) const;

  /// The `gcr-migrate REQUEST[0] AGENT REQUEST[1..]` command with the operator's certificate.
  std::vector<std::string> order_command(Host agent, const std::vector<std::string>& request) const;
  /// Runs it.
  CommandResult order(Host agent, const std::vector<std::string>& request) const;

  /// The output of `gcr-migrate QUESTION` with --json for the host's agent.
  google::protobuf::Struct ask(Host host, const std::string& question,
                               const std::vector<std::string>& options = {}) const;

  /// As migrate(), with further options of gcr-migrate and its report in full.
  MigrateReport migrate_for_report(Host from, pid_t pid,
                                   const std::vector<std::string>& options) const;
  static MigrateOutcome parse_outcome(const CommandResult& result);
  static CommandResult run_patiently(const std::vector<std::string>& command, Milliseconds limit);

  void stop_agent(Host host);
  void start_agent(Host host);
  pid_t agent_pid(Host host) const;

  /// The agent's worker processes that run now.
  std::vector<pid_t> workers(Host host) const;

  /// The processes that hold the VRAM of suspended jobs.
  std::vector<pid_t> keepers(Host host) const;

  /// Kills them; returns when they have ended.
  void kill_keepers(Host host) const;

  /// Waits until the agent has no worker any more.
  bool wait_until_idle(Host host, Milliseconds timeout = Milliseconds(120'000)) const;

  /// Bytes used on the host's software GPU `number`.
  std::uint64_t vram_used(Host host, std::size_t number) const;

  /// How many descriptors the agent's daemon has open.
  std::uint64_t descriptors(Host host) const;

  /// Waits until these are at most `most`: a daemon learns a little later that its worker ended.
  bool wait_for_descriptors(Host host, std::uint64_t most) const;

  /// Waits until the agent is idle, then measures.
  HostUse use(Host host) const;

  /// Waits a while until that is `wanted`: a process's resources are released only after it is no
  /// longer visible.
  HostUse use_coming_to(Host host, const HostUse& wanted) const;

 private:
  std::string directory_;
  std::map<std::string, std::string> variables_;
  int apps_started_ = 0;
};

/// A UDP client in a host's network.
class UdpClient {
 public:
  /// `network_namespace` is a path (NS_A, NS_B). Throws std::system_error.
  explicit UdpClient(const std::string& network_namespace);

  /// Sends one packet and returns the answer without its line end; nothing if none came in time.
  std::optional<std::string> ask(const std::string& address, std::uint16_t port,
                                 Milliseconds timeout = Milliseconds(120'000),
                                 const std::string& packet = ".") const;

 private:
  UniqueFd socket_;
};

/// Bytes that the host's end of the link has received since it was created.
std::uint64_t received_bytes(const TwoHosts& hosts, Host host);

}  // namespace gcr::e2e
