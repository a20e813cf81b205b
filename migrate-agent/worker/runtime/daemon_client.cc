#include "migrate-agent/worker/runtime/daemon_client.h"

#include <spdlog/spdlog.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/experimental/channel.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <map>

#include "migrate-agent/worker/runtime/packet.h"
#include "src/control/control_channel.h"
#include "src/control/deadline.h"

namespace gcr::worker {
namespace {

constexpr std::size_t kMaxTextBytes = 1024;
constexpr std::chrono::milliseconds kAnswerTimeout = std::chrono::seconds(10);

Error daemon_gone() {
  return Error(Code::kUnavailable, "the agent's daemon has ended; restart migrate-agent");
}

}  // namespace

/// State shared with the reading coroutine, which ends once the descriptor is closed.
struct DaemonClient::Impl : std::enable_shared_from_this<Impl> {
  using Answer = asio::experimental::channel<void(std::error_code, Status)>;

  Impl(asio::io_context& io, UniqueFd fd) : socket(io, fd.release()) {}

  static asio::awaitable<void> read_all(std::shared_ptr<Impl> self);
  void handle(Packet packet);
  Status send(const registry::FromWorker& message) {
    if (gone) return daemon_gone();
    return send_packet(socket.native_handle(), message, -1, Wait::kYes);
  }
  asio::awaitable<Status> request(registry::FromWorker message);
  void end();

  asio::posix::stream_descriptor socket;
  std::map<std::uint32_t, std::shared_ptr<Answer>> awaited;  ///< by sequence
  std::function<void(UniqueFd)> on_data;
  std::uint32_t last_sequence = 0;
  bool gone = false;
  std::string phase;
  std::optional<registry::Outcome> outcome;
};

/// Runs detached, so only `self` may keep the object alive.
asio::awaitable<void> DaemonClient::Impl::read_all(std::shared_ptr<Impl> self) {
  while (!self->gone) {
    std::error_code error;
    co_await self->socket.async_wait(asio::posix::stream_descriptor::wait_read,
                                     asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;  // destroyed
    auto packet = receive_packet(self->socket.native_handle());
    if (packet && !*packet) continue;
    if (!packet || (*packet)->bytes.empty()) co_return self->end();
    self->handle(std::move(**packet));
  }
}

void DaemonClient::Impl::end() {
  gone = true;
  for (const auto& [sequence, answer] : awaited) answer->close();
}

void DaemonClient::Impl::handle(Packet packet) {
  registry::FromDaemon message;
  if (!message.ParseFromString(packet.bytes)) {
    spdlog::error("the daemon sent an invalid message of {} bytes", packet.bytes.size());
    return;
  }
  if (message.has_answer()) {
    const auto found = awaited.find(message.answer().sequence());
    if (found == awaited.end()) return;
    found->second->try_send(std::error_code(), from_answer(message.answer()));
  } else if (message.has_data_connection() && packet.fd && on_data) {
    on_data(std::move(packet.fd));
  }
}

asio::awaitable<Status> DaemonClient::Impl::request(registry::FromWorker message) {
  const auto self = shared_from_this();
  const std::uint32_t sequence = ++last_sequence;
  message.set_sequence(sequence);
  GCR_CO_TRY(send(message));
  const auto answer = std::make_shared<Answer>(socket.get_executor(), 1);
  awaited.emplace(sequence, answer);
  const control::Deadline deadline(socket.get_executor(), kAnswerTimeout,
                                   [&answer] { answer->close(); });
  std::error_code closed;
  Status status = co_await answer->async_receive(asio::redirect_error(asio::use_awaitable, closed));
  awaited.erase(sequence);
  if (!closed) co_return status;
  if (gone) co_return daemon_gone();
  if (deadline.expired()) co_return Error(Code::kTimeout, "the agent's daemon does not reply");
  co_return Error(Code::kCancelled, "no longer waiting for the agent's daemon");
}

DaemonClient::DaemonClient(asio::io_context& io, UniqueFd socket)
    : impl_(std::make_shared<Impl>(io, std::move(socket))) {
  asio::co_spawn(io, Impl::read_all(impl_), asio::detached);
}

DaemonClient::~DaemonClient() {
  std::error_code ignored;
  impl_->socket.close(ignored);
  impl_->on_data = nullptr;
  impl_->end();
}

asio::awaitable<Status> DaemonClient::admit(const control::PeerIdentity& peer) {
  registry::FromWorker message;
  message.mutable_authenticated()->set_peer(peer.common_name.substr(0, kMaxTextBytes));
  message.mutable_authenticated()->set_is_agent(peer.is_agent);
  return impl_->request(std::move(message));
}

asio::awaitable<Status> DaemonClient::claim_processes(Uuid migration, journal::ProcessIds processes,
                                                      const std::string& ordered_by) {
  registry::FromWorker message;
  message.mutable_claim_processes()->set_migration_id(to_bytes(migration));
  *message.mutable_claim_processes()->mutable_processes() = std::move(processes);
  message.mutable_claim_processes()->set_ordered_by(ordered_by.substr(0, kMaxTextBytes));
  return impl_->request(std::move(message));
}

asio::awaitable<Status> DaemonClient::take_suspended(Uuid migration,
                                                     const std::string& ordered_by) {
  registry::FromWorker message;
  message.mutable_take_suspended()->set_migration_id(to_bytes(migration));
  message.mutable_take_suspended()->set_ordered_by(ordered_by.substr(0, kMaxTextBytes));
  return impl_->request(std::move(message));
}

asio::awaitable<Status> DaemonClient::register_migration(Uuid migration,
                                                         const std::string& ordered_by) {
  registry::FromWorker message;
  message.mutable_register_migration()->set_migration_id(to_bytes(migration));
  message.mutable_register_migration()->set_ordered_by(ordered_by.substr(0, kMaxTextBytes));
  return impl_->request(std::move(message));
}

asio::awaitable<Status> DaemonClient::check_admission(journal::Role role,
                                                      const std::string& ordered_by,
                                                      journal::ProcessIds processes) {
  registry::FromWorker message;
  message.mutable_ask_room()->set_role(role);
  message.mutable_ask_room()->set_ordered_by(ordered_by.substr(0, kMaxTextBytes));
  *message.mutable_ask_room()->mutable_processes() = std::move(processes);
  return impl_->request(std::move(message));
}

void DaemonClient::on_data_connection(std::function<void(UniqueFd)> handler) {
  impl_->on_data = std::move(handler);
}

void DaemonClient::report_phase(std::string_view phase) {
  impl_->phase = phase.substr(0, kMaxTextBytes);
  registry::FromWorker message;
  message.mutable_phase()->set_name(impl_->phase);
  const Status lost = impl_->send(message);
}

const std::string& DaemonClient::phase() const { return impl_->phase; }

void DaemonClient::report_outcome(registry::Outcome outcome) {
  outcome.mutable_report()->clear_rounds();  // too many rounds may not fit into a packet
  registry::FromWorker message;
  *message.mutable_outcome() = outcome;
  impl_->outcome = std::move(outcome);
  const Status lost = impl_->send(message);
}

const std::optional<registry::Outcome>& DaemonClient::outcome() const { return impl_->outcome; }

}  // namespace gcr::worker
