// The daemon's listening sockets: TCP for peers, of which it reads only the preface, and a Unix
// socket to which all local users may connect; the kernel identifies the user.
#pragma once

#include <sys/types.h>

#include <asio/awaitable.hpp>
#include <asio/generic/stream_protocol.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/local/stream_protocol.hpp>
#include <chrono>
#include <filesystem>

#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "src/control/control_channel.h"

namespace gcr::daemon {

/// Binds `acceptor` and listens. Returns "address:port" as bound.
Result<std::string> listen_on(asio::ip::tcp::acceptor& acceptor, const control::Endpoint& endpoint);

/// Returns the unit in which connections from `address` are counted: an IPv4 address itself, or the
/// 64-bit network of an IPv6 address, since a host usually controls the whole network.
std::string network_of(const asio::ip::address& address);

/// Reads exactly the preface, within `timeout`. kProtocol if it is invalid, kTimeout, kUnavailable
/// if the peer closed before it was complete.
asio::awaitable<Result<control::Preface>> read_preface(asio::ip::tcp::socket& socket,
                                                       std::chrono::milliseconds timeout);

/// Releases the descriptor of `socket` in blocking mode, close-on-exec; `socket` is closed
/// afterwards.
Result<UniqueFd> take_descriptor(asio::generic::stream_protocol::socket socket);

/// An accepted connection of a local user.
struct LocalConnection {
  UniqueFd socket;  ///< in blocking mode, close-on-exec
  uid_t uid = 0;    ///< of the user at the time of the connection
};

/// The Unix socket for local users. Move-only; belongs to the thread that runs the io_context.
class LocalListener {
 public:
  /// Listens at `path`, and atomically replaces an earlier daemon's socket there. kInvalidArgument
  /// if users other than root and this process's could replace the socket, because they may write
  /// to its directory.
  static Result<LocalListener> listen(asio::io_context& io, const std::filesystem::path& path);

  LocalListener(LocalListener&& other) noexcept = default;
  LocalListener& operator=(LocalListener&&) = delete;
  /// Removes the socket, unless another daemon has replaced it.
  ~LocalListener();

  /// Accepts the next connection. kCancelled once the listener is closed.
  asio::awaitable<Result<LocalConnection>> accept();

 private:
  LocalListener(asio::local::stream_protocol::acceptor acceptor, std::filesystem::path path,
                ino_t inode)
      : acceptor_(std::move(acceptor)), path_(std::move(path)), inode_(inode) {}

  asio::local::stream_protocol::acceptor acceptor_;
  std::filesystem::path path_;  ///< empty once moved from
  ino_t inode_ = 0;
};

}  // namespace gcr::daemon
