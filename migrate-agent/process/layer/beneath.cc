#include "migrate-agent/process/layer/beneath.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <string_view>

namespace gcr::layer {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

}  // namespace

UniqueFd open_beneath(const UniqueFd& directory, const std::string& path, int flags) {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV;
  const char* const name = path.empty() ? "." : path.c_str();
  return UniqueFd(
      static_cast<int>(::syscall(SYS_openat2, directory.get(), name, &how, sizeof(how))));
}

// O_NOFOLLOW would say of a link that it is no directory.
UniqueFd hold_directory(const UniqueFd& top, const std::string& path) {
  return open_beneath(top, path, O_PATH | O_DIRECTORY);
}

UniqueFd hold_beneath(const UniqueFd& directory, const std::string& path) {
  return open_beneath(directory, path, O_PATH | O_NOFOLLOW);
}

bool is_gone(int error) {
  return error == ENOENT || error == ENOTDIR || error == ELOOP || error == ESTALE;
}

std::optional<struct statx> look(const UniqueFd& directory, const std::string& name) {
  struct statx status {};
  const int flags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | (name.empty() ? AT_EMPTY_PATH : 0);
  if (::statx(directory.get(), name.c_str(), flags, STATX_BASIC_STATS | STATX_BTIME, &status)) {
    return std::nullopt;
  }
  return status;
}

bool is_mount_point(const struct statx& status) {
  return (status.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

std::optional<std::set<std::string>> names_in(const UniqueFd& directory, const std::string& path,
                                              std::size_t most) {
  UniqueFd opened = open_beneath(directory, path, O_RDONLY | O_DIRECTORY);
  if (!opened) return std::nullopt;
  const std::unique_ptr<DIR, CloseDirectory> reading(::fdopendir(opened.get()));
  if (!reading) return std::nullopt;
  (void)opened.release();
  std::set<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(reading.get())) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    names.emplace(name);
    if (names.size() > most) errno = E2BIG;
    if (errno != 0) return std::nullopt;
  }
  if (errno != 0) return std::nullopt;
  return names;
}

std::string link_of(const UniqueFd& held) { return "/proc/self/fd/" + std::to_string(held.get()); }

}  // namespace gcr::layer
