// Where local users reach the daemon: a Unix socket in the file system that everybody may connect
// to. The kernel tells which user connected.
#pragma once

#include <sys/types.h>

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <asio/local/stream_protocol.hpp>
#include <filesystem>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::agent {

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

  /// No more connections are accepted.
  void close();

 private:
  LocalListener(asio::local::stream_protocol::acceptor acceptor, std::filesystem::path path,
                ino_t inode)
      : acceptor_(std::move(acceptor)), path_(std::move(path)), inode_(inode) {}

  asio::local::stream_protocol::acceptor acceptor_;
  std::filesystem::path path_;  ///< empty once moved from
  ino_t inode_ = 0;
};

}  // namespace gcr::agent
