#include "migrate-agent/worker/local_socket.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace gcr::agent {

Result<LocalAddress> LocalAddress::create(const std::filesystem::path& path) {
  LocalAddress result;
  result.directory_.reset(::open(path.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!result.directory_) {
    return Error::from_errno(errno, "cannot open the directory " + path.parent_path().string());
  }
  const std::string name =
      fmt::format("/proc/self/fd/{}/{}", result.directory_.get(), path.filename().string());
  if (name.size() >= sizeof(result.address_.sun_path)) {
    return Error(Code::kInvalidArgument, fmt::format("the name of a socket is too long: {}", name));
  }
  result.address_.sun_family = AF_UNIX;
  std::memcpy(result.address_.sun_path, name.c_str(), name.size() + 1);
  return result;
}

}  // namespace gcr::agent
