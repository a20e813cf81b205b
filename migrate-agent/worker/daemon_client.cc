#include "migrate-agent/worker/daemon_client.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>
#include <deque>
#include <map>

#include "migrate-agent/worker/answer.h"
#include "migrate-agent/worker/packet.h"
#include "src/control/control_channel.h"
#include "src/control/deadline.h"

namespace gcr::agent {
namespace {

constexpr std::size_t kMaxWaitingConnections = 64;
constexpr std::size_t kMaxTextBytes = 1024;
constexpr std::chrono::milliseconds kAnswerTimeout = std::chrono::seconds(10);

Error daemon_gone() {
  return Error(Code::kUnavailable, "the agent's daemon has ended; restart migrate-agent");
}

}  // namespace

/// Shared with the reading coroutine, which ends once the descriptor is closed.
struct DaemonClient::Impl : std::enable_shared_from_this<Impl> {
  Impl(asio::io_context& io, UniqueFd fd)
      : socket(io, fd.release()), changed(io, asio::steady_timer::time_point::max()) {}

  static asio::awaitable<void> read_all(std::shared_ptr<Impl> self);
  void take(Packet packet);
  Status send(const registry::FromWorker& message) {
    if (gone) return daemon_gone();
    return send_packet(socket.native_handle(), message, -1, Wait::kYes);
  }
  asio::awaitable<Status> request(registry::FromWorker message);
  template <class Condition>
  asio::awaitable<void> wait_until(Condition condition);

  asio::posix::stream_descriptor socket;
  asio::steady_timer changed;  ///< never expires; cancelled to wake waiting coroutines
  std::map<std::uint32_t, Status> answers;
  std::deque<UniqueFd> connections;
  std::uint32_t last_sequence = 0;
  bool gone = false;
  std::string phase;
  std::optional<registry::Outcome> outcome;
};

/// Starts later than it is called: by then nobody but `self` may hold the object.
asio::awaitable<void> DaemonClient::Impl::read_all(std::shared_ptr<Impl> self) {
  while (!self->gone) {
    std::error_code error;
    co_await self->socket.async_wait(asio::posix::stream_descriptor::wait_read,
                                     asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;  // destroyed
    auto packet = receive_packet(self->socket.native_handle());
    if (packet && !*packet) continue;
    self->gone = !packet || (*packet)->bytes.empty();
    if (!self->gone) self->take(std::move(**packet));
    self->changed.cancel();
  }
}

void DaemonClient::Impl::take(Packet packet) {
  registry::FromDaemon message;
  if (!message.ParseFromString(packet.bytes)) {
    spdlog::error("the daemon sent {} bytes that cannot be understood", packet.bytes.size());
    return;
  }
  if (message.has_answer()) {
    answers[message.answer().sequence()] = from_answer(message.answer());
  } else if (message.has_data_connection() && packet.fd) {
    if (connections.size() >= kMaxWaitingConnections) {
      spdlog::warn("closed a data connection: {} wait already", connections.size());
      return;
    }
    connections.push_back(std::move(packet.fd));
  }
}

template <class Condition>
asio::awaitable<void> DaemonClient::Impl::wait_until(Condition condition) {
  const auto cancellation = co_await asio::this_coro::cancellation_state;
  while (!condition() && cancellation.cancelled() == asio::cancellation_type::none) {
    std::error_code woken;
    co_await changed.async_wait(asio::redirect_error(asio::use_awaitable, woken));
  }
}

asio::awaitable<Status> DaemonClient::Impl::request(registry::FromWorker message) {
  const auto self = shared_from_this();
  const std::uint32_t sequence = ++last_sequence;
  message.set_sequence(sequence);
  GCR_CO_TRY(send(message));
  const control::Deadline deadline(socket.get_executor(), kAnswerTimeout,
                                   [this] { changed.cancel(); });
  co_await wait_until([&] { return gone || deadline.expired() || answers.contains(sequence); });
  auto answer = answers.extract(sequence);
  if (!answer.empty()) co_return std::move(answer.mapped());
  if (gone) co_return daemon_gone();
  if (deadline.expired()) co_return Error(Code::kTimeout, "the agent's daemon does not answer");
  co_return Error(Code::kCancelled, "no longer waiting for the agent's daemon");
}

DaemonClient::DaemonClient(asio::io_context& io, UniqueFd socket)
    : impl_(std::make_shared<Impl>(io, std::move(socket))) {
  asio::co_spawn(io, Impl::read_all(impl_), asio::detached);
}

DaemonClient::~DaemonClient() {
  std::error_code ignored;
  impl_->gone = true;
  impl_->socket.close(ignored);
  impl_->changed.cancel();
}

asio::awaitable<Status> DaemonClient::admit(const control::PeerIdentity& peer) {
  registry::FromWorker message;
  message.mutable_authenticated()->set_peer(peer.common_name.substr(0, kMaxTextBytes));
  message.mutable_authenticated()->set_is_agent(peer.is_agent);
  return impl_->request(std::move(message));
}

asio::awaitable<Status> DaemonClient::claim_processes(Uuid migration, journal::ProcessIds processes,
                                                      std::string ordered_by) {
  registry::FromWorker message;
  message.mutable_claim_processes()->set_migration_id(to_bytes(migration));
  *message.mutable_claim_processes()->mutable_processes() = std::move(processes);
  message.mutable_claim_processes()->set_ordered_by(ordered_by.substr(0, kMaxTextBytes));
  return impl_->request(std::move(message));
}

asio::awaitable<Status> DaemonClient::register_migration(Uuid migration, std::string ordered_by) {
  registry::FromWorker message;
  message.mutable_register_migration()->set_migration_id(to_bytes(migration));
  message.mutable_register_migration()->set_ordered_by(ordered_by.substr(0, kMaxTextBytes));
  return impl_->request(std::move(message));
}

asio::awaitable<Status> DaemonClient::ask_room(journal::Role role, std::string ordered_by,
                                               journal::ProcessIds processes) {
  registry::FromWorker message;
  message.mutable_ask_room()->set_role(role);
  message.mutable_ask_room()->set_ordered_by(ordered_by.substr(0, kMaxTextBytes));
  *message.mutable_ask_room()->mutable_processes() = std::move(processes);
  return impl_->request(std::move(message));
}

asio::awaitable<Result<UniqueFd>> DaemonClient::next_data_connection(Milliseconds timeout) {
  const auto impl = impl_;
  const control::Deadline deadline(impl->socket.get_executor(), timeout,
                                   [&impl] { impl->changed.cancel(); });
  co_await impl->wait_until(
      [&] { return impl->gone || deadline.expired() || !impl->connections.empty(); });
  if (!impl->connections.empty()) {
    UniqueFd connection = std::move(impl->connections.front());
    impl->connections.pop_front();
    co_return connection;
  }
  if (impl->gone) co_return daemon_gone();
  if (!deadline.expired()) co_return Error(Code::kCancelled, "no longer waiting for connections");
  co_return Error(Code::kTimeout,
                  fmt::format("no data connection came within {} ms", timeout.count()));
}

void DaemonClient::report_phase(std::string_view phase) {
  impl_->phase = phase.substr(0, kMaxTextBytes);
  registry::FromWorker message;
  message.mutable_phase()->set_name(impl_->phase);
  const Status lost = impl_->send(message);
}

const std::string& DaemonClient::phase() const { return impl_->phase; }

void DaemonClient::report_outcome(registry::Outcome outcome) {
  outcome.mutable_report()->clear_rounds();  // as many as there were: they may not fit
  registry::FromWorker message;
  *message.mutable_outcome() = outcome;
  impl_->outcome = std::move(outcome);
  const Status lost = impl_->send(message);
}

const std::optional<registry::Outcome>& DaemonClient::outcome() const { return impl_->outcome; }

}  // namespace gcr::agent
