// A real agent as a child process, on a free port of loopback, with its own certificates and
// folders; a test can wait for its log lines.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "src/base/unique_fd.h"
#include "src/control/control_channel.h"
#include "tests/src/control/peers.h"

namespace gcr::daemon::test {

/// A folder that is removed with its owner.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Runs a program to its end. Standard output and error together.
struct Finished {
  int exit_status = -1;
  std::string output;
};
Finished run_to_end(const std::vector<std::string>& words);

/// Files that outlive a restarted agent.
struct AgentHome {
  std::shared_ptr<TemporaryFolder> folder = std::make_shared<TemporaryFolder>();
  std::uint16_t port = 0;  ///< 0: any

  std::filesystem::path state_dir() const { return folder->path() + "/state"; }
  std::filesystem::path runtime_dir() const { return folder->path() + "/run"; }
};

class AgentProcess {
 public:
  /// Starts the agent and returns when it listens; throws if it does not. `settings` are further
  /// lines of its configuration.
  AgentProcess(control::test::Credentials& credentials, const std::string& settings = {},
               AgentHome home = {});
  /// The same with these files, which the test may change while it runs.
  AgentProcess(const control::TlsFiles& tls, const std::string& settings, AgentHome home = {});
  /// Kills it and its workers, if they still run.
  ~AgentProcess();
  AgentProcess(const AgentProcess&) = delete;
  AgentProcess& operator=(const AgentProcess&) = delete;

  pid_t pid() const { return pid_; }
  std::uint16_t port() const { return endpoint_.port; }
  const control::Endpoint& endpoint() const { return endpoint_; }
  const AgentHome& home() const { return home_; }
  std::filesystem::path state_dir() const { return home_.state_dir(); }

  /// Returns once a line with `text` has been logged; false if the agent ended without it. Each
  /// line is examined once.
  bool wait_for_log(const std::string& text);
  /// The number after `before` in the next line with `text` that wait_for_log() finds; throws if
  /// there is none.
  int number_in_log(const std::string& text, const std::string& before);
  /// Whether a line with `text` has been logged so far.
  bool has_logged(const std::string& text);
  /// Waits for the end; returns the exit status, or 128 and the signal.
  int wait_for_end();
  /// SIGKILL to the daemon only.
  void kill_daemon();

 private:
  void read_log(UniqueFd log);

  AgentHome home_;
  pid_t pid_ = -1;
  control::Endpoint endpoint_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
  std::size_t looked_at_ = 0;
  bool log_ended_ = false;
  std::thread reader_;
};

/// A control connection that a test drives from its own thread, one call at a time.
class Client {
 public:
  /// Connects with such a leaf's certificate; throws if that fails.
  Client(const AgentProcess& agent, std::shared_ptr<asio::ssl::context> tls);
  Client(const AgentProcess& agent, control::test::Credentials& credentials, const char* role,
         const Uuid& migration = {});
  /// The same; without `tls` to a local socket. `migration` is the id in its preface.
  Client(const control::Endpoint& agent, std::shared_ptr<asio::ssl::context> tls,
         const Uuid& migration = {});

  void send(const proto::Envelope& message);
  /// The next message; throws if none arrives.
  proto::Envelope receive();
  /// Whether the agent has closed the connection instead of sending a message.
  bool is_closed();
  /// Sends a command to the test's roles and returns the first reply.
  proto::Envelope ask(const std::string& wish, int pid = 1, unsigned start_time = 1);
  proto::Envelope offer(const Uuid& migration, const std::string& ordered_by = {});
  /// Sends a request and returns the reply.
  proto::Envelope call(const proto::Envelope& request);
  /// Ends a worker that waits for its client.
  void release();

 private:
  Result<proto::Envelope> receive_any();
  asio::io_context io_{1};
  std::unique_ptr<control::ControlChannel> channel_;
};

/// A plain connection; it sends nothing by itself.
class PlainConnection {
 public:
  explicit PlainConnection(std::uint16_t port);
  void send(std::string_view bytes);
  void send_preface(control::ConnectionKind kind, const Uuid& migration);
  /// Waits until the agent closes; true if it sent nothing before.
  bool ends_without_a_word();
  void close() { socket_.reset(); }

 private:
  UniqueFd socket_;
};

}  // namespace gcr::daemon::test
