// Two ends of a control channel on loopback: this project's code on an io_context, and a raw peer
// that blocks in its own thread and may send anything.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "src/control/control_channel.h"
#include "tests/support/test_certificates.h"

namespace gcr::control::test {

using ChannelResult = Result<std::unique_ptr<ControlChannel>>;
inline constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(60);

/// Certificates of one authority as files, in a folder that is removed with the object.
class Credentials {
 public:
  Credentials();
  ~Credentials();
  Credentials(const Credentials&) = delete;
  Credentials& operator=(const Credentials&) = delete;

  const gcr::test::TestAuthority& authority() const { return authority_; }
  /// New files for a leaf; throws if they cannot be written.
  TlsFiles issue(const gcr::test::LeafOptions& leaf);
  /// A context with such a leaf; throws if it cannot be created.
  std::shared_ptr<asio::ssl::context> context(const gcr::test::LeafOptions& leaf);

 private:
  gcr::test::TestAuthority authority_;
  std::string folder_;
  int issued_ = 0;
};

/// A blocking TLS client without checks.
class RawPeer {
 public:
  /// Connects and sends the preface, in the clear.
  RawPeer(std::uint16_t port, const Preface& preface);
  ~RawPeer();
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  /// False if the handshake fails on this side.
  bool handshake(SSL_CTX* context);
  void write(const std::string& bytes);
  void write_message(const proto::Envelope& message);
  /// The next message; nothing once the other side has closed or sent an alert.
  std::optional<proto::Envelope> read_message();

 private:
  bool read(char* bytes, std::size_t length);
  UniqueFd socket_;
  SSL* ssl_ = nullptr;
};

/// A Hello as this side sends it, optionally with another version.
proto::Envelope hello(std::uint32_t version = kProtocolVersion);

/// Length (4 bytes, big endian) and payload.
std::string frame(std::uint32_t length, const std::string& payload);

/// One server and one client on an io_context.
class Loopback {
 public:
  Loopback();

  Endpoint endpoint() const { return {"127.0.0.1", acceptor_.local_endpoint().port()}; }

  /// Accepts one connection, reads its preface, and does the server's half.
  asio::awaitable<ChannelResult> accept(std::shared_ptr<asio::ssl::context> tls,
                                        std::chrono::milliseconds timeout = kPatience);
  /// The client's half.
  asio::awaitable<ChannelResult> connect(std::shared_ptr<asio::ssl::context> tls,
                                         std::string host = "127.0.0.1",
                                         std::chrono::milliseconds timeout = kPatience);

  /// Runs coroutines concurrently to their ends; an exception in one of them leaves run().
  void run(std::vector<asio::awaitable<void>> coroutines);

  /// Both halves concurrently.
  std::pair<ChannelResult, ChannelResult> connect_both(std::shared_ptr<asio::ssl::context> server,
                                                       std::shared_ptr<asio::ssl::context> client,
                                                       const std::string& host = "127.0.0.1");

  asio::io_context& io() { return io_; }

 private:
  asio::io_context io_{1};
  asio::ip::tcp::acceptor acceptor_;
};

}  // namespace gcr::control::test
