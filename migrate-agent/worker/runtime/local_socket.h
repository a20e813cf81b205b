// Sockets in the file system, with paths of any length.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <filesystem>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::worker {

/// For bind() and connect(). Names the file through a descriptor of its directory, so that only the
/// file's own name has to fit into the address. Move-only.
class LocalAddress {
 public:
  /// kNotFound if the directory does not exist.
  static Result<LocalAddress> create(const std::filesystem::path& path);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t length() const { return sizeof(address_); }

 private:
  UniqueFd directory_;
  sockaddr_un address_{};
};

struct ListeningSocket {
  UniqueFd socket;  ///< non-blocking
  ino_t inode = 0;  ///< of its name
};

/// A listening Unix socket of `type` (SOCK_…). It replaces what has the name: others find the old
/// socket or the new one, never none.
Result<ListeningSocket> listen_at(const std::filesystem::path& path, int type, mode_t mode);

}  // namespace gcr::worker
