// Roles for tests of the daemon: what a MigrateRequest's destination says is what its worker does.
#include <unistd.h>

#include <csignal>
#include <stdexcept>

#include "migrate-agent/roles/roles.h"

namespace gcr::agent {
namespace {

constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(60);

asio::awaitable<void> tell(control::ControlChannel& channel, const char* phase, std::string text) {
  proto::Envelope message;
  message.mutable_event()->set_phase(phase);
  message.mutable_event()->set_text(std::move(text));
  const Status sent = co_await channel.send(message);
  if (!sent) throw std::runtime_error(sent.error().message());
}

/// A child that outlives this process.
pid_t leave_child_behind() {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  return child;
}

std::string read_to_end(int fd) {
  std::string text;
  char buffer[256];
  for (ssize_t count = 0; (count = ::read(fd, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  return text;
}

}  // namespace

asio::awaitable<void> run_source(WorkerContext& context, proto::MigrateRequest request) {
  const std::string& wish = request.destination();
  if (wish == "crash") ::raise(SIGKILL);
  if (wish == "throw") throw std::runtime_error("thrown by the role");
  if (wish == "leave-child") {
    co_await tell(context.channel, "child", std::to_string(leave_child_behind()));
    co_return;
  }
  if (wish == "claim") {
    const Status claimed =
        co_await context.daemon.claim_process(Uuid::random(), request.pid(), request.lanes());
    const char* phase = claimed ? "claimed" : "refused";
    std::string text = claimed ? std::string() : claimed.error().message();
    co_await tell(context.channel, phase, std::move(text));
  } else {
    co_await tell(context.channel, "pid", std::to_string(::getpid()));
  }
  const auto released = co_await context.channel.receive(kPatience);
  context.daemon.report_outcome(false, released ? "released" : "left");
}

asio::awaitable<void> run_destination(WorkerContext& context, proto::PreflightRequest request) {
  Uuid migration;
  std::copy_n(request.migration_id().begin(), migration.bytes.size(), migration.bytes.begin());
  const Status registered = co_await context.daemon.register_migration(migration);
  const char* phase = registered ? "registered" : "refused";
  std::string why = registered ? std::string() : registered.error().message();
  co_await tell(context.channel, phase, std::move(why));
  if (!registered) co_return;
  auto connection = co_await context.daemon.next_data_connection(kPatience);
  if (!connection) throw std::runtime_error(connection.error().message());
  const int fd = connection->get();
  Result<std::string> text =
      co_await offload(context.blocking, [fd]() -> Result<std::string> { return read_to_end(fd); });
  co_await tell(context.channel, "data", std::move(*text));
}

}  // namespace gcr::agent
