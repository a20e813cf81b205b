#include "src/control/control_channel.h"

#include <fmt/format.h>
#include <sys/un.h>

#include <asio/connect.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/this_coro.hpp>
#include <asio/write.hpp>

#include "src/base/host_name.h"
#include "src/control/deadline.h"
#include "src/control/stream.h"
#include "src/control/tls.h"

namespace gcr::control {
namespace {

using asio::ip::tcp;
using asio::ssl::stream_base;
using Milliseconds = ControlChannel::Milliseconds;

constexpr Milliseconds kSendTimeout = std::chrono::seconds(30);
constexpr Milliseconds kRefusalTimeout = std::chrono::seconds(2);

/// Limits how many messages a peer sends per second.
class MessageRate {
 public:
  /// Counts a message; false if the peer exceeded the limit for this second.
  bool admit() {
    const auto now = std::chrono::steady_clock::now();
    if (now - since_ >= std::chrono::seconds(1)) {
      since_ = now;
      count_ = 0;
    }
    return ++count_ <= kMaxMessagesPerSecond;
  }

 private:
  std::chrono::steady_clock::time_point since_{};
  unsigned count_ = 0;
};

}  // namespace

struct ControlChannel::Impl {
  Impl(Stream::Socket socket, std::shared_ptr<asio::ssl::context> tls, std::string name)
      : stream(std::move(socket), std::move(tls)), peer_name(std::move(name)) {
    address = stream.peer_address();
    local_host = stream.local_host();
  }

  void close() { stream.close(); }
  Error error_of(const std::error_code& error) { return stream.error_of(error, peer_name); }
  Error timeout_error(std::string_view what, Milliseconds timeout) const {
    return Error(Code::kTimeout, fmt::format("{} {} for {} ms", peer_name, what, timeout.count()));
  }

  /// `unacknowledged_bytes` had been sent to the peer and were not acknowledged at the timeout.
  Error silence_error(Milliseconds timeout, std::size_t unacknowledged_bytes) const {
    const Error silent = timeout_error("sent nothing", timeout);
    if (unacknowledged_bytes == 0) return silent;
    return Error(silent.code(),
                 fmt::format("{}, and its host has not acknowledged {} bytes: {}", silent.message(),
                             unacknowledged_bytes, kUnacknowledged));
  }

  asio::awaitable<Status> write(const proto::Envelope& message);
  asio::awaitable<Result<proto::Envelope>> read();
  asio::awaitable<Status> exchange_hellos(std::string host);
  Status check_hello(const proto::Envelope& message);
  asio::awaitable<Status> start_client(const std::string& host);
  asio::awaitable<Status> start_server();
  Status trust_local_agent();
  Status recognise_local_user();
  asio::awaitable<void> refuse(const Error& error);

  Stream stream;
  std::string peer_name;  ///< "the agent at 10.0.0.2:7411"
  std::string address;
  std::string local_host;
  PeerIdentity identity;
  proto::Hello hello;
  std::size_t longest_message = kMaxHelloBytes;  ///< that the peer may send now
  MessageRate rate;
};

asio::awaitable<Status> ControlChannel::Impl::write(const proto::Envelope& message) {
  const auto frame = encode_message(message);
  if (!frame) co_return frame.error();
  const std::error_code error = co_await stream.write(asio::buffer(*frame));
  if (error) co_return error_of(error);
  co_return Status{};
}

asio::awaitable<Result<proto::Envelope>> ControlChannel::Impl::read() {
  LengthBytes header{};
  std::error_code error = co_await stream.read(asio::buffer(header));
  if (error) co_return error_of(error);
  if (!rate.admit()) {
    co_return Error(Code::kProtocol, fmt::format("{} sends more than {} messages per second",
                                                 peer_name, kMaxMessagesPerSecond));
  }
  const auto length = decode_length(header, peer_name, longest_message);
  if (!length) co_return length.error();
  std::string payload(*length, '\0');
  error = co_await stream.read(asio::buffer(payload));
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
  // If the peer refused this side's certificate, the write may fail; the peer's own error is more
  // useful.
  const Result<proto::Envelope> theirs = co_await read();
  if (!theirs) co_return theirs.error();
  if (!sent) co_return sent.error();
  longest_message = identity.is_agent ? kMaxMessageBytes : kMaxQuestionBytes;
  co_return check_hello(*theirs);
}

/// Only root can create a socket in a directory that only root may write; checks the peer's uid all
/// the same.
Status ControlChannel::Impl::trust_local_agent() {
  GCR_ASSIGN(const uid_t uid, stream.peer_uid());
  if (uid != 0 && uid != ::geteuid()) {
    return Error(Code::kPermissionDenied,
                 fmt::format("cannot trust {}: it belongs to uid {}, not to root", peer_name, uid));
  }
  identity.common_name = fmt::format("uid {}", uid);
  identity.is_agent = true;
  return {};
}

Status ControlChannel::Impl::recognise_local_user() {
  GCR_ASSIGN(const uid_t uid, stream.peer_uid());
  identity.common_name = fmt::format("uid {}", uid);
  identity.uid = uid;
  peer_name = "the local user with " + identity.common_name;
  return {};
}

asio::awaitable<Status> ControlChannel::Impl::start_client(const std::string& host) {
  if (stream.is_local()) co_return trust_local_agent();
  GCR_CO_TRY(expect_host(stream.ssl(), host));
  const std::error_code error = co_await stream.handshake(stream_base::client);
  if (error) co_return error_of(error);
  auto peer = peer_identity(stream.ssl());
  if (!peer) co_return peer.error();
  identity = std::move(*peer);
  const Status agent = verify_agent(stream.ssl());
  if (!agent) co_return agent.error().while_doing("cannot trust " + peer_name);
  co_return Status{};
}

asio::awaitable<Status> ControlChannel::Impl::start_server() {
  if (stream.is_local()) co_return recognise_local_user();
  const std::error_code error = co_await stream.handshake(stream_base::server);
  if (error) co_return error_of(error);
  auto peer = peer_identity(stream.ssl());
  if (!peer) co_return peer.error();
  identity = std::move(*peer);
  peer_name = fmt::format("\"{}\" at {}", identity.common_name, address);
  co_return Status{};
}

/// Sends `error` to the peer if the connection allows it, and closes.
asio::awaitable<void> ControlChannel::Impl::refuse(const Error& error) {
  if (stream.is_local() || SSL_is_init_finished(stream.ssl()) == 1) {
    const Deadline deadline(stream.executor(), kRefusalTimeout, [this] { close(); });
    proto::Envelope message;
    *message.mutable_failure() = to_failure(error);
    const Status ignored = co_await write(message);
  }
  co_await stream.drain(kRefusalTimeout);
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

asio::awaitable<Result<Stream::Socket>> connect_tcp(Endpoint endpoint, Milliseconds timeout) {
  tcp::socket socket(co_await asio::this_coro::executor);
  const Deadline deadline(socket.get_executor(), timeout, [&socket] {
    std::error_code ignored;
    socket.close(ignored);
  });
  tcp::resolver resolver(socket.get_executor());
  const std::string port = std::to_string(endpoint.port);
  std::error_code error;
  const auto found = co_await resolver.async_resolve(endpoint.host, port,
                                                     tcp::resolver::numeric_service, into(error));
  if (!error) co_await asio::async_connect(socket, found, into(error));
  if (deadline.expired()) co_return too_slow(endpoint, timeout);
  if (error) co_return unreachable(endpoint, error);
  co_return Stream::Socket(std::move(socket));
}

asio::awaitable<Result<Stream::Socket>> connect_local(Endpoint endpoint) {
  using asio::local::stream_protocol;
  if (endpoint.host.size() >= sizeof(sockaddr_un::sun_path)) {
    co_return Error(Code::kInvalidArgument,
                    fmt::format("the path {} is too long for a socket", endpoint.host));
  }
  stream_protocol::socket socket(co_await asio::this_coro::executor);
  std::error_code error;
  co_await socket.async_connect(stream_protocol::endpoint(endpoint.host), into(error));
  if (error == asio::error::connection_refused || error.value() == ENOENT) {
    co_return Error(Code::kUnavailable,
                    fmt::format("cannot reach the agent at {}: {}; is migrate-agent running here, "
                                "with that as local_socket in its agent.toml?",
                                endpoint.to_string(), reason_of(error)));
  }
  if (error) co_return unreachable(endpoint, error);
  co_return Stream::Socket(std::move(socket));
}

}  // namespace

asio::awaitable<Result<std::unique_ptr<ControlChannel>>> ControlChannel::connect(
    Endpoint endpoint, Preface preface, std::shared_ptr<asio::ssl::context> tls,
    Milliseconds timeout, std::string host) {
  const auto executor = co_await asio::this_coro::executor;
  const auto give_up_at = std::chrono::steady_clock::now() + timeout;
  if (endpoint.is_local()) tls.reset();
  if (!endpoint.is_local() && tls == nullptr) {
    co_return Error(Code::kPermissionDenied,
                    fmt::format("the agent at {} requires a certificate, and none was given",
                                endpoint.to_string()));
  }
  auto connecting = endpoint.is_local() ? connect_local(endpoint) : connect_tcp(endpoint, timeout);
  auto socket = co_await std::move(connecting);
  if (!socket) co_return socket.error();
  auto impl = std::make_unique<Impl>(std::move(*socket), std::move(tls),
                                     "the agent at " + endpoint.to_string());
  const auto left =
      std::chrono::duration_cast<Milliseconds>(give_up_at - std::chrono::steady_clock::now());
  const Deadline deadline(executor, left, [&impl] { impl->close(); });
  std::error_code error;
  if (!endpoint.is_local()) {
    const auto bytes = preface.encode();
    co_await asio::async_write(impl->stream.socket(), asio::buffer(bytes), into(error));
  }
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
  auto connection = Stream::adopt(executor, socket);
  if (!connection) co_return connection.error();
  if (connection->local_endpoint().protocol().family() == AF_UNIX) tls.reset();
  auto impl = std::make_unique<Impl>(std::move(*connection), std::move(tls), "");
  impl->peer_name = "the peer at " + impl->address;
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
  const Deadline deadline(impl_->stream.executor(), kSendTimeout, [this] { impl_->close(); });
  Status sent = co_await impl_->write(message);
  if (deadline.expired()) co_return impl_->timeout_error("accepted no data", kSendTimeout);
  co_return sent;
}

asio::awaitable<Result<proto::Envelope>> ControlChannel::receive(Milliseconds timeout) {
  std::size_t unacknowledged_bytes = 0;
  const Deadline deadline(impl_->stream.executor(), timeout, [&] {
    unacknowledged_bytes = impl_->stream.unacknowledged_bytes();
    impl_->close();
  });
  Result<proto::Envelope> message = co_await impl_->read();
  if (deadline.expired()) co_return impl_->silence_error(timeout, unacknowledged_bytes);
  if (!message && message.error().code() != Code::kCancelled) impl_->close();
  co_return message;
}

asio::awaitable<Result<proto::Envelope>> ControlChannel::receive_past_alive(Milliseconds timeout) {
  for (;;) {
    auto message = co_await receive(timeout);
    if (!message || !message->has_alive()) co_return message;
  }
}

asio::awaitable<Result<proto::Envelope>> ControlChannel::call(const proto::Envelope& request,
                                                              Milliseconds silence) {
  const Status sent = co_await send(request);
  GCR_CO_TRY(sent);
  co_return co_await receive_past_alive(silence);
}

const PeerIdentity& ControlChannel::peer() const { return impl_->identity; }
const proto::Hello& ControlChannel::peer_hello() const { return impl_->hello; }
std::string ControlChannel::peer_address() const { return impl_->address; }
std::string ControlChannel::local_host() const { return impl_->local_host; }

bool ControlChannel::stays_on_host() const {
  const auto peer = Endpoint::parse(impl_->address);
  return peer && !impl_->local_host.empty() && peer->host == impl_->local_host;
}
void ControlChannel::close() { impl_->close(); }

asio::awaitable<void> ControlChannel::finish(Milliseconds timeout) {
  co_await impl_->stream.drain(timeout);
}

}  // namespace gcr::control
