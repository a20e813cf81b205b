#include "migrate-agent/worker/runtime/worker_server.h"

#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/experimental/channel.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <cerrno>
#include <optional>
#include <set>

#include "migrate-agent/commit/journal/journal_files.h"
#include "migrate-agent/worker/runtime/local_socket.h"
#include "migrate-agent/worker/runtime/packet.h"
#include "proto/registry.pb.h"

namespace gcr::worker {
namespace {

using asio::posix::stream_descriptor;

constexpr std::size_t kMaxConnections = 64;
constexpr std::size_t kMaxDecisions = 64;
constexpr mode_t kOwnerOnly = 0600;
constexpr double kLeastDowntimeLimitMs = 1;
constexpr double kMostDowntimeLimitMs = 3'600'000;

registry::WorkerReply reply_of(const Status& status) {
  registry::WorkerReply reply;
  *reply.mutable_answer() = to_answer(status);
  return reply;
}

/// Creates the directory with mode 0700; fails if it cannot be made private.
Status make_socket_directory(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return Error::from_errno(error.value(), "cannot make the directory " + directory.string());
  }
  if (::chmod(directory.c_str(), S_IRWXU) != 0) {
    return Error::from_errno(errno, "cannot protect " + directory.string());
  }
  return {};
}

}  // namespace

/// The connection of a decision's requester, as long as it is open.
struct Decision::Requester {
  std::weak_ptr<stream_descriptor> socket;
  bool answered = false;

  bool waits() const {
    const auto open = socket.lock();
    return open && open->is_open();
  }
  void answer(const Status& status) {
    const auto open = socket.lock();
    if (answered || !open || !open->is_open()) return;
    answered = true;
    const Status sent = send_packet(open->native_handle(), reply_of(status), -1, Wait::kNo);
    if (!sent) spdlog::info("cannot deliver the reply to a decision: {}", sent.error().message());
  }
  ~Requester() { answer(Error(Code::kUnavailable, "the decision was not carried out; ask again")); }
};

void Decision::answer(const Status& status) {
  if (requester) requester->answer(status);
}

/// State shared with the coroutines of its connections, which end once it is closed.
struct WorkerServer::Impl : std::enable_shared_from_this<Impl> {
  using Connection = std::shared_ptr<stream_descriptor>;

  Impl(asio::io_context& context, const Config& settings, Cancellation& wish,
       const DaemonClient& line)
      : io(context), config(settings), cancellation(wish), daemon(line) {}

  static asio::awaitable<void> accept_all(std::shared_ptr<Impl> self);
  asio::awaitable<void> serve(Connection connection);
  void handle(const Connection& connection, const registry::ToWorker& message);
  Status order(const registry::ToWorker& message);
  void decide(const Connection& connection, const registry::Decide& message);
  void close();

  asio::io_context& io;
  const Config& config;
  Cancellation& cancellation;
  const DaemonClient& daemon;
  stream_descriptor listener{io};
  asio::experimental::channel<void(std::error_code, Decision)> decisions{io, kMaxDecisions};
  std::set<Connection> connections;
  std::optional<WorkerAddress> address;
  SourceControl* control = nullptr;
  bool operator_needed = false;
  bool closed = false;
};

/// Runs detached, so only `self` may keep the object alive.
asio::awaitable<void> WorkerServer::Impl::accept_all(std::shared_ptr<Impl> self) {
  while (!self->closed) {
    std::error_code error;
    co_await self->listener.async_wait(stream_descriptor::wait_read,
                                       asio::redirect_error(asio::use_awaitable, error));
    if (error || self->closed) co_return;
    UniqueFd accepted(
        ::accept4(self->listener.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!accepted || self->connections.size() >= kMaxConnections) continue;
    auto connection = std::make_shared<stream_descriptor>(self->io, accepted.release());
    self->connections.insert(connection);
    asio::co_spawn(self->io, self->serve(std::move(connection)), asio::detached);
  }
}

asio::awaitable<void> WorkerServer::Impl::serve(Connection connection) {
  const auto self = shared_from_this();
  for (;;) {
    std::error_code error;
    co_await connection->async_wait(stream_descriptor::wait_read,
                                    asio::redirect_error(asio::use_awaitable, error));
    if (error || closed) co_return;
    const auto packet = receive_packet(connection->native_handle());
    if (packet && !*packet) continue;
    registry::ToWorker message;
    if (!packet || (*packet)->bytes.empty() || !message.ParseFromString((*packet)->bytes)) {
      connections.erase(connection);
      co_return;
    }
    handle(connection, message);
  }
}

void WorkerServer::Impl::handle(const Connection& connection, const registry::ToWorker& message) {
  if (message.has_decide()) return decide(connection, message.decide());
  registry::WorkerReply reply = reply_of({});
  if (message.has_cancel()) {
    spdlog::info("migration cancelled: {}", message.cancel().why());
    cancellation.request(message.cancel().why());
  } else if (message.has_ask_status()) {
    reply.mutable_status()->set_phase(daemon.phase());
    reply.mutable_status()->set_operator_needed(operator_needed);
    if (control != nullptr) *reply.mutable_status()->mutable_progress() = control->progress();
  } else if (message.has_go_on() || message.has_adjust()) {
    reply = reply_of(order(message));
  } else {
    reply = reply_of(Error(Code::kUnsupported, "the worker does not know this request"));
  }
  const Status sent = send_packet(connection->native_handle(), reply, -1, Wait::kNo);
  if (!sent) spdlog::info("cannot deliver the worker's reply: {}", sent.error().message());
}

Status WorkerServer::Impl::order(const registry::ToWorker& message) {
  if (control == nullptr) {
    return Error(Code::kRefused, "the migration is not copying anything from this host now");
  }
  return message.has_go_on() ? control->go_on() : control->adjust(message.adjust());
}

void WorkerServer::Impl::decide(const Connection& connection, const registry::Decide& message) {
  Decision decision;
  decision.run_here = message.decision() != registry::Decide::DISCARD_HERE;
  decision.by_source = message.decision() == registry::Decide::COMMITTED;
  decision.by = message.by();
  decision.requester = std::make_shared<Decision::Requester>();
  decision.requester->socket = connection;
  if (message.decision() == registry::Decide::DECISION_INVALID) {
    return decision.answer(Error(Code::kInvalidArgument, "the request contains no decision"));
  }
  decisions.try_send(std::error_code(), std::move(decision));
}

void WorkerServer::Impl::close() {
  std::error_code ignored;
  closed = true;
  listener.close(ignored);
  for (const Connection& connection : connections) connection->close(ignored);
  connections.clear();
  decisions.close();
}

WorkerServer::WorkerServer(asio::io_context& io, const Config& config, Cancellation& cancellation,
                           const DaemonClient& daemon)
    : impl_(std::make_shared<Impl>(io, config, cancellation, daemon)) {}

WorkerServer::~WorkerServer() {
  impl_->close();
  if (impl_->address) remove_worker_socket(impl_->config, *impl_->address);
}

Status WorkerServer::open(const Uuid& migration, journal::Role role) {
  WorkerAddress address{impl_->config.runtime_dir, migration, role};
  GCR_TRY(make_socket_directory(address.path().parent_path()));
  GCR_ASSIGN(auto listening, listen_at(address.path(), SOCK_SEQPACKET, kOwnerOnly));
  impl_->listener.assign(listening.socket.release());
  impl_->address = std::move(address);
  asio::co_spawn(impl_->io, Impl::accept_all(impl_), asio::detached);
  return {};
}

asio::awaitable<Decision> WorkerServer::next_decision() {
  const auto impl = impl_;
  for (;;) {
    std::error_code closed;
    Decision next =
        co_await impl->decisions.async_receive(asio::redirect_error(asio::use_awaitable, closed));
    if (closed) co_return Decision();
    if (next.requester->waits()) co_return next;
  }
}

Status check_adjustment(const proto::AdjustRequest& wanted) {
  if (!wanted.has_max_bandwidth_bytes() && !wanted.has_downtime_limit_ms()) {
    return Error(Code::kInvalidArgument, "the request changes nothing");
  }
  const double limit_ms = wanted.downtime_limit_ms();
  // Written so that NaN is also refused.
  if (wanted.has_downtime_limit_ms() &&
      !(limit_ms >= kLeastDowntimeLimitMs && limit_ms <= kMostDowntimeLimitMs)) {
    return Error(Code::kInvalidArgument, "a downtime limit is 1 ms to an hour");
  }
  return {};
}

void WorkerServer::attach(SourceControl* control) { impl_->control = control; }

void WorkerServer::set_operator_needed(bool needed) { impl_->operator_needed = needed; }

void remove_worker_socket(const Config& config, const WorkerAddress& address) {
  // Only the journal's owner binds this name, so the holder of its lock may remove it.
  const auto path = journal::path_of(config.state_dir, address.migration, address.role);
  const auto owned = journal::Journal::open(path, journal::Lock::kTry);
  if (!owned && owned.error().code() == Code::kUnavailable) return;
  ::unlink(address.path().c_str());
}

void remove_dead_worker_sockets(const Config& config) {
  std::error_code error;
  for (const auto& file :
       std::filesystem::directory_iterator(config.runtime_dir / "workers", error)) {
    const auto entry = journal::entry_of(file.path());
    if (entry) remove_worker_socket(config, {config.runtime_dir, entry->migration, entry->role});
  }
}

}  // namespace gcr::worker
