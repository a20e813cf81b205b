#include "src/control/control_channel.h"

#include <fmt/format.h>
#include <netinet/tcp.h>

#include <asio/connect.hpp>
#include <asio/read.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>

#include "src/control/deadline.h"
#include "src/control/framing.h"
#include "src/control/tls.h"

namespace gcr::control {
namespace {

using asio::ip::tcp;
using Stream = asio::ssl::stream<tcp::socket>;
using Milliseconds = ControlChannel::Milliseconds;

constexpr Milliseconds kSendTimeout = std::chrono::seconds(30);
constexpr Milliseconds kRefusalTimeout = std::chrono::seconds(2);
constexpr int kKeepaliveIdleSeconds = 10;
constexpr int kKeepaliveIntervalSeconds = 5;
constexpr int kKeepaliveProbes = 3;
constexpr int kUserTimeoutMilliseconds = 30'000;

/// The completion token of every operation here: what goes wrong is left in `error`.
auto into(std::error_code& error) { return asio::redirect_error(asio::use_awaitable, error); }

/// A peer that vanished without a word is noticed within about half a minute.
void watch_for_vanished_peer(int socket) {
  const auto set = [socket](int level, int option, int value) {
    ::setsockopt(socket, level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveIntervalSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMilliseconds);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string address_of(const tcp::socket& socket) {
  std::error_code error;
  const tcp::endpoint remote = socket.remote_endpoint(error);
  if (error) return "unknown address";
  return Endpoint{remote.address().to_string(), remote.port()}.to_string();
}

std::string local_host_of(const tcp::socket& socket) {
  std::error_code error;
  const tcp::endpoint local = socket.local_endpoint(error);
  return error ? "" : local.address().to_string();
}

}  // namespace

struct ControlChannel::Impl {
  Impl(tcp::socket socket, std::shared_ptr<asio::ssl::context> context, std::string name)
      : tls(std::move(context)), stream(std::move(socket), *tls), peer_name(std::move(name)) {
    address = address_of(stream.next_layer());
    local_host = local_host_of(stream.next_layer());
    watch_for_vanished_peer(stream.next_layer().native_handle());
  }

  tcp::socket& socket() { return stream.next_layer(); }
  void close() {
    std::error_code ignored;
    socket().close(ignored);
  }
  Error error_of(const std::error_code& error) {
    return stream_error(stream.native_handle(), error, peer_name);
  }
  Error timeout_error(std::string_view what, Milliseconds timeout) const {
    return Error(Code::kTimeout, fmt::format("{} {} for {} ms", peer_name, what, timeout.count()));
  }

  asio::awaitable<Status> write(const proto::Envelope& message);
  asio::awaitable<Result<proto::Envelope>> read();
  asio::awaitable<Status> exchange_hellos(std::string host);
  Status check_hello(const proto::Envelope& message);
  asio::awaitable<Status> start_client(const std::string& host);
  asio::awaitable<Status> start_server();
  asio::awaitable<void> refuse(const Error& error);
  asio::awaitable<void> drain(Milliseconds timeout);

  std::shared_ptr<asio::ssl::context> tls;
  Stream stream;
  std::string peer_name;  ///< "the agent at 10.0.0.2:7411"
  std::string address;
  std::string local_host;
  PeerIdentity identity;
  proto::Hello hello;
};

asio::awaitable<Status> ControlChannel::Impl::write(const proto::Envelope& message) {
  const auto frame = encode_message(message);
  if (!frame) co_return frame.error();
  std::error_code error;
  co_await asio::async_write(stream, asio::buffer(*frame), into(error));
  if (error) co_return error_of(error);
  co_return Status{};
}

asio::awaitable<Result<proto::Envelope>> ControlChannel::Impl::read() {
  LengthBytes header{};
  std::error_code error;
  co_await asio::async_read(stream, asio::buffer(header), into(error));

  if (error) co_return error_of(error);
  const auto length = decode_length(header, peer_name);
  if (!length) co_return length.error();
  std::string payload(*length, '\0');
  co_await asio::async_read(stream, asio::buffer(payload), into(error));
  if (error) co_return error_of(error);
  co_return decode_message(payload, peer_name);
}

Status ControlChannel::Impl::check_hello(const proto::Envelope& message) {
  if (message.has_failure()) return from_failure(message.failure());
  if (!message.has_hello()) {
    return Error(Code::kProtocol, peer_name + " does not begin with a Hello");
  }
  hello = message.hello();
  hello.set_software(printable(hello.software()));
  hello.set_host(printable(hello.host()));
  if (hello.protocol_version() == kProtocolVersion) return {};
  return Error(Code::kProtocol,
               fmt::format("{} speaks version {} of the protocol ({}), this side version {} ({}); "
                           "install the same release on both",
                           peer_name, hello.protocol_version(), hello.software(), kProtocolVersion,
                           GCR_SOFTWARE));
}

asio::awaitable<Status> ControlChannel::Impl::exchange_hellos(std::string host) {
  proto::Envelope ours;
  ours.mutable_hello()->set_protocol_version(kProtocolVersion);
  ours.mutable_hello()->set_software(GCR_SOFTWARE);
  ours.mutable_hello()->set_host(host.empty() ? host_name() : std::move(host));
  const Status sent = co_await write(ours);
  // Where the peer refused this side's certificate, the write may fail; what it said is worth more.
  const Result<proto::Envelope> theirs = co_await read();
  if (!theirs) co_return theirs.error();
  if (!sent) co_return sent.error();
  co_return check_hello(*theirs);
}

asio::awaitable<Status> ControlChannel::Impl::start_client(const std::string& host) {
  GCR_CO_TRY(expect_host(stream.native_handle(), host));
  std::error_code error;
  co_await stream.async_handshake(asio::ssl::stream_base::client, into(error));
  if (error) co_return error_of(error);
  auto peer = peer_identity(stream.native_handle());
  if (!peer) co_return peer.error();
  identity = std::move(*peer);
  const Status agent = verify_agent(stream.native_handle());
  if (!agent) co_return agent.error().while_doing("cannot trust " + peer_name);
  co_return Status{};
}

asio::awaitable<Status> ControlChannel::Impl::start_server() {
  std::error_code error;
  co_await stream.async_handshake(asio::ssl::stream_base::server, into(error));
  if (error) co_return error_of(error);
  auto peer = peer_identity(stream.native_handle());
  if (!peer) co_return peer.error();
  identity = std::move(*peer);
  peer_name = fmt::format("\"{}\" at {}", identity.common_name, address);
  co_return Status{};
}

/// Half-closes and reads to the end: closing a socket with unread input would reset the connection
/// and could take with it what was just sent.
asio::awaitable<void> ControlChannel::Impl::drain(Milliseconds timeout) {
  const Deadline deadline(stream.get_executor(), timeout, [this] { close(); });
  std::error_code error;
  socket().shutdown(tcp::socket::shutdown_send, error);
  std::array<char, 4096> dropped{};
  while (!error) {
    co_await socket().async_read_some(asio::buffer(dropped), into(error));
  }
  close();
}

/// Tells the peer why, if it can still be told, and closes.
asio::awaitable<void> ControlChannel::Impl::refuse(const Error& error) {
  if (SSL_is_init_finished(stream.native_handle()) == 1) {
    const Deadline deadline(stream.get_executor(), kRefusalTimeout, [this] { close(); });
    proto::Envelope message;
    *message.mutable_failure() = to_failure(error);
    const Status ignored = co_await write(message);
  }
  co_await drain(kRefusalTimeout);
}

namespace {

Error unreachable(const Endpoint& endpoint, const std::error_code& error) {
  std::string text =
      fmt::format("cannot reach the agent at {}: {}", endpoint.to_string(), reason_of(error));
  if (error == asio::error::connection_refused) text += "; is migrate-agent running there?";
  if (error.category() == asio::error::get_netdb_category()) text += "; check the host's name";
  return Error(Code::kUnavailable, std::move(text));
}

Error too_slow(const Endpoint& endpoint, Milliseconds timeout) {
  return Error(Code::kUnavailable,
               fmt::format("cannot reach the agent at {}: no answer within {} ms; is it up, and is "
                           "the port open?",
                           endpoint.to_string(), timeout.count()));
}

asio::awaitable<Status> connect_socket(tcp::socket& socket, const Endpoint& endpoint) {
  tcp::resolver resolver(socket.get_executor());
  const std::string port = std::to_string(endpoint.port);
  std::error_code error;
  const auto found = co_await resolver.async_resolve(endpoint.host, port,
                                                     tcp::resolver::numeric_service, into(error));
  if (error) co_return unreachable(endpoint, error);
  co_await asio::async_connect(socket, found, into(error));
  if (error) co_return unreachable(endpoint, error);
  co_return Status{};
}

}  // namespace

asio::awaitable<Result<std::unique_ptr<ControlChannel>>> ControlChannel::connect(
    Endpoint endpoint, Preface preface, std::shared_ptr<asio::ssl::context> tls,
    Milliseconds timeout, std::string host) {
  const auto executor = co_await asio::this_coro::executor;
  const auto give_up_at = std::chrono::steady_clock::now() + timeout;
  tcp::socket socket(executor);
  {
    const Deadline deadline(executor, timeout, [&socket] {
      std::error_code ignored;
      socket.close(ignored);
    });
    const Status connected = co_await connect_socket(socket, endpoint);
    if (deadline.expired()) co_return too_slow(endpoint, timeout);
    if (!connected) co_return connected.error();
  }
  auto impl = std::make_unique<Impl>(std::move(socket), std::move(tls),
                                     "the agent at " + endpoint.to_string());
  const auto left =
      std::chrono::duration_cast<Milliseconds>(give_up_at - std::chrono::steady_clock::now());
  const Deadline deadline(executor, left, [&impl] { impl->close(); });
  const auto bytes = preface.encode();
  std::error_code error;
  co_await asio::async_write(impl->socket(), asio::buffer(bytes), into(error));
  Status started = error ? Status(impl->error_of(error)) : Status{};
  if (started) started = co_await impl->start_client(endpoint.host);
  if (started) started = co_await impl->exchange_hellos(std::move(host));
  if (deadline.expired()) co_return too_slow(endpoint, timeout);
  if (!started) {
    impl->close();
    co_return started.error();
  }
  co_return std::unique_ptr<ControlChannel>(new ControlChannel(std::move(impl)));
}

asio::awaitable<Result<std::unique_ptr<ControlChannel>>> ControlChannel::accept(
    UniqueFd socket, std::shared_ptr<asio::ssl::context> tls, Milliseconds timeout,
    std::string host) {
  const auto executor = co_await asio::this_coro::executor;
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &length) != 0) {
    co_return Error::from_errno(errno, "cannot use the accepted connection");
  }
  tcp::socket connection(executor);
  std::error_code error;
  connection.assign(local.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), socket.get(), error);
  if (error) {
    co_return Error(Code::kIo, "cannot use the accepted connection: " + reason_of(error));
  }
  (void)socket.release();
  std::string name = "the peer at " + address_of(connection);
  auto impl = std::make_unique<Impl>(std::move(connection), std::move(tls), std::move(name));
  Status started;
  {
    const Deadline deadline(executor, timeout, [&impl] { impl->close(); });
    started = co_await impl->start_server();
    if (started) started = co_await impl->exchange_hellos(std::move(host));
    if (deadline.expired()) co_return impl->timeout_error("did not finish its handshake", timeout);
  }
  if (!started) {
    const Error refusal = started.error();
    co_await impl->refuse(refusal);
    co_return refusal;
  }
  co_return std::unique_ptr<ControlChannel>(new ControlChannel(std::move(impl)));
}

ControlChannel::ControlChannel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlChannel::~ControlChannel() = default;

asio::awaitable<Status> ControlChannel::send(const proto::Envelope& message) {
  const Deadline deadline(impl_->stream.get_executor(), kSendTimeout, [this] { impl_->close(); });
  Status sent = co_await impl_->write(message);
  if (deadline.expired()) co_return impl_->timeout_error("took nothing", kSendTimeout);
  co_return sent;
}

asio::awaitable<Result<proto::Envelope>> ControlChannel::receive(Milliseconds timeout) {
  const Deadline deadline(impl_->stream.get_executor(), timeout, [this] { impl_->close(); });
  Result<proto::Envelope> message = co_await impl_->read();
  if (deadline.expired()) co_return impl_->timeout_error("sent nothing", timeout);
  if (!message && message.error().code() != Code::kCancelled) impl_->close();
  co_return message;
}

asio::awaitable<Result<proto::Envelope>> ControlChannel::call(const proto::Envelope& request,
                                                              Milliseconds timeout) {
  const Status sent = co_await send(request);
  if (!sent) co_return sent.error();
  Result<proto::Envelope> reply = co_await receive(timeout);
  if (reply && reply->has_failure()) co_return from_failure(reply->failure());
  co_return reply;
}

const PeerIdentity& ControlChannel::peer() const { return impl_->identity; }
const proto::Hello& ControlChannel::peer_hello() const { return impl_->hello; }
std::string ControlChannel::peer_address() const { return impl_->address; }
std::string ControlChannel::local_host() const { return impl_->local_host; }
void ControlChannel::close() { impl_->close(); }

asio::awaitable<void> ControlChannel::finish(Milliseconds timeout) {
  co_await impl_->drain(timeout);
}

}  // namespace gcr::control
