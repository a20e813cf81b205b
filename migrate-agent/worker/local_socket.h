// The address of a socket in the file system, for paths of any length.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::agent {

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

}  // namespace gcr::agent
