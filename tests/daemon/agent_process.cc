#include "tests/daemon/agent_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace gcr::daemon::test {

using control::test::kPatience;

namespace {

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

/// Starts a program; `placed` are descriptors and the numbers under which it finds them.
pid_t start(const std::vector<std::string>& words, const std::vector<std::pair<int, int>>& placed) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const auto& [from, to] : placed) posix_spawn_file_actions_adddup2(&actions, from, to);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " + words[0]);
  return pid;
}

int decode(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(fd, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  return text;
}

/// Every process that was started with this configuration.
void kill_workers(const std::string& config) {
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(process.path().filename().c_str());
    std::ostringstream words;  // stays empty if the process ends meanwhile
    words << std::ifstream(process.path() / "cmdline").rdbuf();
    if (pid > 0 && pid != ::getpid() && words.str().find(config) != std::string::npos) {
      ::kill(pid, SIGKILL);
    }
  }
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "gcr-daemon-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

Finished run_to_end(const std::vector<std::string>& words) {
  Pipe output = make_pipe();
  const pid_t pid = start(words, {{output.write.get(), 1}, {output.write.get(), 2}});
  output.write.reset();
  Finished finished;
  finished.output = read_all(output.read.get());
  int status = 0;
  ::waitpid(pid, &status, 0);
  finished.exit_status = decode(status);
  return finished;
}

AgentProcess::AgentProcess(control::test::Credentials& credentials, const std::string& settings,
                           AgentHome home)
    : AgentProcess(credentials.issue({}), settings, std::move(home)) {}

AgentProcess::AgentProcess(const control::TlsFiles& tls, const std::string& settings,
                           AgentHome home)
    : home_(std::move(home)) {
  const std::string config = home_.folder->path() + "/agent.toml";
  gcr::test::write_private_file(
      config, fmt::format("listen = \"127.0.0.1:{5}\"\nstate_dir = \"{0}/state\"\n"
                          "runtime_dir = \"{0}/run\"\n{1}\n[tls]\nauthority = \"{2}\"\n"
                          "certificate = \"{3}\"\nkey = \"{4}\"\nrevoked = \"{6}\"\n",
                          home_.folder->path(), settings, tls.authority, tls.certificate, tls.key,
                          home_.port, tls.revoked));
  Pipe log = make_pipe();
  Pipe ready = make_pipe();
  constexpr int kReadyFd = 9;
  pid_ = start({GCR_TEST_AGENT, "--config", config, "--ready-fd", std::to_string(kReadyFd)},
               {{log.write.get(), 2}, {ready.write.get(), kReadyFd}});
  log.write.reset();
  ready.write.reset();
  reader_ = std::thread([this, fd = std::move(log.read)]() mutable { read_log(std::move(fd)); });
  const std::string line = read_all(ready.read.get());
  unsigned port = 0;
  if (std::sscanf(line.c_str(), "listening on 127.0.0.1:%u\n", &port) == 1) {
    endpoint_ = {"127.0.0.1", static_cast<std::uint16_t>(port)};
    home_.port = endpoint_.port;
  } else {
    ::kill(pid_, SIGKILL);
    wait_for_end();
    reader_.join();
    throw std::runtime_error("the agent does not listen");
  }
}

AgentProcess::~AgentProcess() {
  kill_daemon();
  // A process that was just started shows its command line a moment later.
  for (std::unique_lock lock(mutex_); !log_ended_;) {
    kill_workers(home_.folder->path() + "/agent.toml");
    changed_.wait_for(lock, std::chrono::milliseconds(5));
  }
  if (reader_.joinable()) reader_.join();
}

void AgentProcess::kill_daemon() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  wait_for_end();
}

void AgentProcess::read_log(UniqueFd log) {
  std::string rest;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(log.get(), buffer, sizeof(buffer))) > 0;) {
    rest.append(buffer, static_cast<std::size_t>(count));
    const std::lock_guard lock(mutex_);
    for (auto end = rest.find('\n'); end != std::string::npos; end = rest.find('\n')) {
      lines_.push_back(rest.substr(0, end));
      rest.erase(0, end + 1);
    }
    changed_.notify_all();
  }
  const std::lock_guard lock(mutex_);
  log_ended_ = true;
  changed_.notify_all();
}

int AgentProcess::number_in_log(const std::string& text, const std::string& before) {
  if (!wait_for_log(text)) throw std::runtime_error("not logged: " + text);
  const std::lock_guard lock(mutex_);
  const std::string& line = lines_.at(looked_at_ - 1);
  return std::stoi(line.substr(line.find(before) + before.size()));
}

bool AgentProcess::has_logged(const std::string& text) {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(
      lines_, [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

bool AgentProcess::wait_for_log(const std::string& text) {
  std::unique_lock lock(mutex_);
  for (;;) {
    while (looked_at_ < lines_.size()) {
      if (lines_[looked_at_++].find(text) != std::string::npos) return true;
    }
    if (log_ended_) return false;
    if (changed_.wait_for(lock, kPatience) == std::cv_status::timeout) return false;
  }
}

int AgentProcess::wait_for_end() {
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  return decode(status);
}

Client::Client(const AgentProcess& agent, control::test::Credentials& credentials, const char* role,
               const Uuid& migration)
    : Client(agent.endpoint(), credentials.context({.role = role, .common_name = role}),
             migration) {}

Client::Client(const AgentProcess& agent, std::shared_ptr<asio::ssl::context> tls)
    : Client(agent.endpoint(), std::move(tls)) {}

Client::Client(const control::Endpoint& agent, std::shared_ptr<asio::ssl::context> tls,
               const Uuid& migration) {
  const control::Preface preface{control::ConnectionKind::kControl, migration};
  std::optional<Error> error;
  asio::co_spawn(io_, control::ControlChannel::connect(agent, preface, std::move(tls), kPatience),
                 [&](const std::exception_ptr&, control::test::ChannelResult connected) {
                   if (connected)
                     channel_ = std::move(*connected);
                   else
                     error = connected.error();
                 });
  io_.run();
  if (error) throw std::runtime_error(error->message());
}

void Client::send(const proto::Envelope& message) {
  io_.restart();
  asio::co_spawn(io_, channel_->send(message), [](const std::exception_ptr&, Status sent) {
    if (!sent) throw std::runtime_error(sent.error().message());
  });
  io_.run();
}

Result<proto::Envelope> Client::receive_any() {
  std::optional<Result<proto::Envelope>> received;
  io_.restart();
  asio::co_spawn(io_, channel_->receive(kPatience),
                 [&](const std::exception_ptr&, Result<proto::Envelope> message) {
                   received.emplace(std::move(message));
                 });
  io_.run();
  return std::move(*received);
}

proto::Envelope Client::receive() {
  auto received = receive_any();
  if (!received) throw std::runtime_error(received.error().message());
  return *received;
}

bool Client::is_closed() {
  const auto received = receive_any();
  return !received && received.error().code() == Code::kUnavailable;
}

proto::Envelope Client::ask(const std::string& wish, int pid, unsigned start_time) {
  proto::Envelope request;
  request.mutable_migrate_request()->set_destination(wish);
  request.mutable_migrate_request()->set_pid(pid);
  request.mutable_migrate_request()->set_lanes(start_time);
  send(request);
  return receive();
}

proto::Envelope Client::offer(const Uuid& migration, const std::string& ordered_by) {
  proto::Envelope request;
  request.mutable_preflight_request()->set_migration_id(migration.bytes.data(),
                                                        migration.bytes.size());
  request.mutable_preflight_request()->set_ordered_by(ordered_by);
  send(request);
  return receive();
}

proto::Envelope Client::call(const proto::Envelope& request) {
  send(request);
  return receive();
}

void Client::release() {
  proto::Envelope message;
  message.mutable_abort_request()->set_reason("done");
  send(message);
}

PlainConnection::PlainConnection(std::uint16_t port)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error("cannot connect to the agent");
  }
}

void PlainConnection::send(std::string_view bytes) {
  if (::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) {
    throw std::runtime_error("cannot send to the agent");
  }
}

void PlainConnection::send_preface(control::ConnectionKind kind, const Uuid& migration) {
  const auto bytes = control::Preface{kind, migration}.encode();
  send({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

bool PlainConnection::ends_without_a_word() { return read_all(socket_.get()).empty(); }

}  // namespace gcr::daemon::test
