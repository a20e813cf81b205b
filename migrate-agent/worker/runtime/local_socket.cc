#include "migrate-agent/worker/runtime/local_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace gcr::worker {

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

Result<ListeningSocket> listen_at(const std::filesystem::path& path, int type, mode_t mode) {
  const auto fail = [&path](const char* what) {
    return Error::from_errno(errno, fmt::format("cannot {} the socket {}", what, path.string()));
  };
  const std::filesystem::path fresh = path.string() + fmt::format(".{}", ::getpid());
  GCR_ASSIGN(const LocalAddress address, LocalAddress::create(fresh));
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return fail("make");
  ::unlink(fresh.c_str());
  struct stat info {};
  const bool made = ::bind(socket.get(), address.get(), address.length()) == 0 &&
                    ::chmod(fresh.c_str(), mode) == 0 && ::listen(socket.get(), SOMAXCONN) == 0 &&
                    ::lstat(fresh.c_str(), &info) == 0 &&
                    ::rename(fresh.c_str(), path.c_str()) == 0;
  if (made) return ListeningSocket{std::move(socket), info.st_ino};
  const Error error = fail("listen at");
  ::unlink(fresh.c_str());
  return error;
}

}  // namespace gcr::worker
