#include "tests/src/control/peers.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <asio/co_spawn.hpp>
#include <asio/read.hpp>
#include <asio/use_awaitable.hpp>
#include <filesystem>
#include <stdexcept>

namespace gcr::control::test {

using asio::ip::tcp;

Credentials::Credentials() {
  std::string pattern = (std::filesystem::temp_directory_path() / "gcr-control-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
  folder_ = pattern;
  gcr::test::write_private_file(folder_ + "/ca.crt", authority_.certificate());
}

Credentials::~Credentials() { std::filesystem::remove_all(folder_); }

TlsFiles Credentials::issue(const gcr::test::LeafOptions& leaf) {
  const std::string stem = folder_ + "/" + std::to_string(++issued_);
  const gcr::test::PemPair pair = authority_.issue(leaf);
  gcr::test::write_private_file(stem + ".crt", pair.certificate);
  gcr::test::write_private_file(stem + ".key", pair.key);
  return {folder_ + "/ca.crt", stem + ".crt", stem + ".key"};
}

std::shared_ptr<asio::ssl::context> Credentials::context(const gcr::test::LeafOptions& leaf) {
  auto context = make_tls_context(issue(leaf));
  if (!context) throw std::runtime_error(context.error().message());
  return *context;
}

RawPeer::RawPeer(std::uint16_t port, const Preface& preface)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error("the raw peer cannot connect");
  }
  const auto bytes = preface.encode();
  if (::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) {
    throw std::runtime_error("the raw peer cannot send");
  }
}

RawPeer::~RawPeer() { SSL_free(ssl_); }

bool RawPeer::handshake(SSL_CTX* context) {
  ssl_ = SSL_new(context);
  SSL_set_fd(ssl_, socket_.get());
  return SSL_connect(ssl_) == 1;
}

void RawPeer::write(const std::string& bytes) {
  SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()));
}

void RawPeer::write_message(const proto::Envelope& message) {
  const std::string payload = message.SerializeAsString();
  write(frame(static_cast<std::uint32_t>(payload.size()), payload));
}

bool RawPeer::read(char* bytes, std::size_t length) {
  while (length > 0) {
    const int count = SSL_read(ssl_, bytes, static_cast<int>(length));
    if (count <= 0) return false;
    bytes += count;
    length -= static_cast<std::size_t>(count);
  }
  return true;
}

std::optional<proto::Envelope> RawPeer::read_message() {
  std::array<char, 4> header{};
  if (!read(header.data(), header.size())) return std::nullopt;
  std::uint32_t length = 0;
  for (const char byte : header) length = length << 8 | static_cast<std::uint8_t>(byte);
  std::string payload(length, '\0');
  proto::Envelope message;
  if (!read(payload.data(), payload.size()) || !message.ParseFromString(payload))
    return std::nullopt;
  return message;
}

proto::Envelope hello(std::uint32_t version) {
  proto::Envelope message;
  message.mutable_hello()->set_protocol_version(version);
  message.mutable_hello()->set_software("raw 9.9");
  return message;
}

std::string frame(std::uint32_t length, const std::string& payload) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(length >> shift));
  return bytes + payload;
}

Loopback::Loopback() : acceptor_(io_, tcp::endpoint(asio::ip::address_v4::loopback(), 0)) {}

asio::awaitable<ChannelResult> Loopback::accept(std::shared_ptr<asio::ssl::context> tls,
                                                std::chrono::milliseconds timeout) {
  tcp::socket socket = co_await acceptor_.async_accept(asio::use_awaitable);
  std::array<std::uint8_t, kPrefaceBytes> bytes{};
  co_await asio::async_read(socket, asio::buffer(bytes), asio::use_awaitable);
  UniqueFd fd(socket.release());
  co_return co_await ControlChannel::accept(std::move(fd), std::move(tls), timeout, "server");
}

asio::awaitable<ChannelResult> Loopback::connect(std::shared_ptr<asio::ssl::context> tls,
                                                 std::string host,
                                                 std::chrono::milliseconds timeout) {
  Endpoint to = endpoint();
  to.host = std::move(host);
  Preface preface;
  preface.kind = ConnectionKind::kControl;
  co_return co_await ControlChannel::connect(std::move(to), preface, std::move(tls), timeout,
                                             "client");
}

void Loopback::run(std::vector<asio::awaitable<void>> coroutines) {
  std::exception_ptr failure;
  for (auto& coroutine : coroutines) {
    asio::co_spawn(io_, std::move(coroutine), [&failure](const std::exception_ptr& exception) {
      if (exception) failure = exception;
    });
  }
  io_.restart();
  io_.run();
  if (failure) std::rethrow_exception(failure);
}

namespace {

asio::awaitable<void> store(asio::awaitable<ChannelResult> from, std::optional<ChannelResult>& to) {
  to.emplace(co_await std::move(from));
}

}  // namespace

std::pair<ChannelResult, ChannelResult> Loopback::connect_both(
    std::shared_ptr<asio::ssl::context> server, std::shared_ptr<asio::ssl::context> client,
    const std::string& host) {
  std::optional<ChannelResult> accepted;
  std::optional<ChannelResult> connected;
  std::vector<asio::awaitable<void>> both;
  both.push_back(store(accept(std::move(server)), accepted));
  both.push_back(store(connect(std::move(client), host), connected));
  run(std::move(both));
  return {std::move(*accepted), std::move(*connected)};
}

}  // namespace gcr::control::test
