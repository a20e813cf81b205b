// Unix sockets with file names of any length.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <filesystem>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::worker {

/// An address for bind() and connect(). Names the file through a descriptor of its directory, so
/// that only the file's own name has to fit. Move-only.
class LocalAddress {
 public:
  /// Opens the directory of `path`. kNotFound if it does not exist.
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

/// Creates a listening Unix socket of `type` (SOCK_…) at `path`. Replaces an existing file
/// atomically: clients find the old socket or the new one.
Result<ListeningSocket> listen_at(const std::filesystem::path& path, int type, mode_t mode);

}  // namespace gcr::worker
