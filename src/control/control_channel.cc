#include "src/control/control_channel.h"

#include <fmt/format.h>
#include <sys/un.h>

#include <asio/connect.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/this_coro.hpp>
#include <asio/write.hpp>

#include "src/base/users.h"
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

}  // namespace

ControlChannel::ControlChannel(Stream::Socket socket, std::shared_ptr<asio::ssl::context> tls,
                               std::string peer_name)
    : stream_(std::move(socket), std::move(tls)),
      peer_name_(std::move(peer_name)),
      address_(stream_.peer_address()),
      local_host_(stream_.local_host()) {}

Error ControlChannel::error_of(const std::error_code& error) {
  return stream_error(stream_.ssl(), error, peer_name_);
}

Error ControlChannel::timeout_error(std::string_view what, Milliseconds timeout) const {
  return Error(Code::kTimeout, fmt::format("{} {} for {} ms", peer_name_, what, timeout.count()));
}

/// `unacknowledged_bytes` had been sent to the peer and were not acknowledged at the timeout.
Error ControlChannel::silence_error(Milliseconds timeout, std::size_t unacknowledged_bytes) const {
  const Error silent = timeout_error("sent nothing", timeout);
  if (unacknowledged_bytes == 0) return silent;
  return Error(silent.code(), fmt::format("{}, and its host has not acknowledged {} bytes: {}",
                                          silent.message(), unacknowledged_bytes, kUnacknowledged));
}

/// Counts a message; false if the peer exceeded the limit for this second.
bool ControlChannel::admit_message() {
  const auto now = std::chrono::steady_clock::now();
  if (now - second_began_ >= std::chrono::seconds(1)) {
    second_began_ = now;
    messages_ = 0;
  }
  return ++messages_ <= kMaxMessagesPerSecond;
}

asio::awaitable<Status> ControlChannel::write(const proto::Envelope& message) {
  GCR_CO_ASSIGN(const std::string frame, encode_message(message));
  const std::error_code error = co_await stream_.write(asio::buffer(frame));
  if (error) co_return error_of(error);
  co_return Status{};
}

asio::awaitable<Result<proto::Envelope>> ControlChannel::read() {
  LengthBytes header{};
  std::error_code error = co_await stream_.read(asio::buffer(header));
  if (error) co_return error_of(error);
  if (!admit_message()) {
    co_return Error(Code::kProtocol, fmt::format("{} sends more than {} messages per second",
                                                 peer_name_, kMaxMessagesPerSecond));
  }
  GCR_CO_ASSIGN(const std::size_t length, decode_length(header, peer_name_, longest_message_));
  std::string payload(length, '\0');
  error = co_await stream_.read(asio::buffer(payload));
  if (error) co_return error_of(error);
  co_return decode_message(payload, peer_name_);
}

Status ControlChannel::check_hello(const proto::Envelope& message) {
  if (message.has_failure()) return from_failure(message.failure());
  if (!message.has_hello()) {
    return Error(Code::kProtocol, peer_name_ + " does not begin with a Hello");
  }
  hello_ = message.hello();
  hello_.set_software(printable(hello_.software()));
  hello_.set_host(printable(hello_.host()));
  if (hello_.protocol_version() == kProtocolVersion) return {};
  return Error(Code::kProtocol,
               fmt::format("{} speaks version {} of the protocol ({}), this side version {} ({}); "
                           "install the same release on both",
                           peer_name_, hello_.protocol_version(), hello_.software(),
                           kProtocolVersion, GCR_SOFTWARE));
}

asio::awaitable<Status> ControlChannel::exchange_hellos(std::string host) {
  proto::Envelope ours;
  ours.mutable_hello()->set_protocol_version(kProtocolVersion);
  ours.mutable_hello()->set_software(GCR_SOFTWARE);
  ours.mutable_hello()->set_host(host.empty() ? host_name() : std::move(host));
  const Status sent = co_await write(ours);
  // If the peer refused this side's certificate, the write may fail; the peer's own error is more
  // useful.
  GCR_CO_ASSIGN(const proto::Envelope theirs, co_await read());
  GCR_CO_TRY(sent);
  longest_message_ = identity_.is_agent ? kMaxMessageBytes : kMaxQuestionBytes;
  co_return check_hello(theirs);
}

/// Only root can create a socket in a directory that only root may write; checks the peer's uid all
/// the same.
Status ControlChannel::trust_local_agent() {
  GCR_ASSIGN(const uid_t uid, stream_.peer_uid());
  if (uid != 0 && uid != ::geteuid()) {
    return Error(
        Code::kPermissionDenied,
        fmt::format("cannot trust {}: it belongs to uid {}, not to root", peer_name_, uid));
  }
  identity_.common_name = fmt::format("uid {}", uid);
  identity_.is_agent = true;
  return {};
}

Status ControlChannel::recognise_local_user() {
  GCR_ASSIGN(const uid_t uid, stream_.peer_uid());
  identity_.common_name = fmt::format("uid {}", uid);
  identity_.uid = uid;
  peer_name_ = "the local user with " + identity_.common_name;
  return {};
}

asio::awaitable<Status> ControlChannel::start_client(const std::string& host) {
  if (stream_.is_local()) co_return trust_local_agent();
  GCR_CO_TRY(expect_host(stream_.ssl(), host));
  const std::error_code error = co_await stream_.handshake(stream_base::client);
  if (error) co_return error_of(error);
  GCR_CO_ASSIGN(identity_, peer_identity(stream_.ssl()));
  const Status agent = verify_agent(stream_.ssl());
  if (!agent) co_return agent.error().while_doing("cannot trust " + peer_name_);
  co_return Status{};
}

asio::awaitable<Status> ControlChannel::start_server() {
  if (stream_.is_local()) co_return recognise_local_user();
  const std::error_code error = co_await stream_.handshake(stream_base::server);
  if (error) co_return error_of(error);
  GCR_CO_ASSIGN(identity_, peer_identity(stream_.ssl()));
  peer_name_ = fmt::format("\"{}\" at {}", identity_.common_name, address_);
  co_return Status{};
}

/// Sends `error` to the peer if the connection allows it, and closes.
asio::awaitable<void> ControlChannel::refuse(const Error& error) {
  if (stream_.is_local() || SSL_is_init_finished(stream_.ssl()) == 1) {
    const Deadline deadline(stream_.executor(), kRefusalTimeout, [this] { close(); });
    proto::Envelope message;
    *message.mutable_failure() = to_failure(error);
    const Status ignored = co_await write(message);
  }
  co_await stream_.drain(kRefusalTimeout);
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
  GCR_CO_ASSIGN(Stream::Socket socket, co_await std::move(connecting));
  std::unique_ptr<ControlChannel> channel(new ControlChannel(
      std::move(socket), std::move(tls), "the agent at " + endpoint.to_string()));
  const auto left =
      std::chrono::duration_cast<Milliseconds>(give_up_at - std::chrono::steady_clock::now());
  const Deadline deadline(executor, left, [&channel] { channel->close(); });
  std::error_code error;
  if (!endpoint.is_local()) {
    const auto bytes = preface.encode();
    co_await asio::async_write(channel->stream_.socket(), asio::buffer(bytes), into(error));
  }
  Status started = error ? Status(channel->error_of(error)) : Status{};
  if (started) started = co_await channel->start_client(endpoint.host);
  if (started) started = co_await channel->exchange_hellos(std::move(host));
  if (deadline.expired()) co_return too_slow(endpoint, timeout);
  if (!started) {
    channel->close();
    co_return started.error();
  }
  co_return channel;
}

asio::awaitable<Result<std::unique_ptr<ControlChannel>>> ControlChannel::accept(
    UniqueFd socket, std::shared_ptr<asio::ssl::context> tls, Milliseconds timeout,
    std::string host) {
  const auto executor = co_await asio::this_coro::executor;
  GCR_CO_ASSIGN(Stream::Socket connection, Stream::adopt(executor, socket));
  if (connection.local_endpoint().protocol().family() == AF_UNIX) tls.reset();
  std::unique_ptr<ControlChannel> channel(
      new ControlChannel(std::move(connection), std::move(tls), ""));
  channel->peer_name_ = "the peer at " + channel->address_;
  Status started;
  {
    const Deadline deadline(executor, timeout, [&channel] { channel->close(); });
    started = co_await channel->start_server();
    if (started) started = co_await channel->exchange_hellos(std::move(host));
    if (deadline.expired())
      co_return channel->timeout_error("did not finish its handshake", timeout);
  }
  if (!started) {
    const Error refusal = started.error();
    co_await channel->refuse(refusal);
    co_return refusal;
  }
  co_return channel;
}

asio::awaitable<Status> ControlChannel::send(const proto::Envelope& message) {
  const Deadline deadline(stream_.executor(), kSendTimeout, [this] { close(); });
  Status sent = co_await write(message);
  if (deadline.expired()) co_return timeout_error("accepted no data", kSendTimeout);
  co_return sent;
}

asio::awaitable<Result<proto::Envelope>> ControlChannel::receive(Milliseconds timeout) {
  std::size_t unacknowledged_bytes = 0;
  const Deadline deadline(stream_.executor(), timeout, [&] {
    unacknowledged_bytes = stream_.unacknowledged_bytes();
    close();
  });
  Result<proto::Envelope> message = co_await read();
  if (deadline.expired()) co_return silence_error(timeout, unacknowledged_bytes);
  if (!message && message.error().code() != Code::kCancelled) close();
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

bool ControlChannel::stays_on_host() const {
  const auto peer = Endpoint::parse(address_);
  return peer && !local_host_.empty() && peer->host == local_host_;
}

}  // namespace gcr::control
