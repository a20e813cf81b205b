// How the daemon is reached: by peers over TCP, of which it reads the preface and no more, and by
// local users through a Unix socket that everybody may connect to; the kernel tells which user
// connected.
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

/// Binds `acceptor` and listens; "address:port" as bound.
Result<std::string> listen_on(asio::ip::tcp::acceptor& acceptor, const control::Endpoint& endpoint);

/// Where a connection comes from, as far as its connections are counted: an IPv4 address, or the
/// network of 64 bits that an IPv6 address is in, since whoever has one of those has all of it.
std::string network_of(const asio::ip::address& address);

/// Reads exactly the preface, within `timeout`. kProtocol if it is none, kTimeout, kUnavailable if
/// the peer closed before.
asio::awaitable<Result<control::Preface>> read_preface(asio::ip::tcp::socket& socket,
                                                       std::chrono::milliseconds timeout);

/// The descriptor of `socket`, in blocking mode, close-on-exec; `socket` is closed afterwards.
Result<UniqueFd> take_descriptor(asio::generic::stream_protocol::socket socket);

/// A connection of a local user's.
struct LocalConnection {
  UniqueFd socket;  ///< in blocking mode, close-on-exec
  uid_t uid = 0;    ///< as it was when the user connected
};

/// Move-only; belongs to the thread that runs the io_context.
class LocalListener {
 public:
  /// Listens at `path`, and atomically replaces an earlier daemon's socket there. kInvalidArgument
  /// if anybody but root (or this process's user) could replace the socket: only root may write to
  /// the directory.
  static Result<LocalListener> listen(asio::io_context& io, const std::filesystem::path& path);

  LocalListener(LocalListener&& other) noexcept = default;
  LocalListener& operator=(LocalListener&&) = delete;
  /// Removes the socket, unless another daemon has replaced it.
  ~LocalListener();

  /// The next connection. kCancelled once it is closed.
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
