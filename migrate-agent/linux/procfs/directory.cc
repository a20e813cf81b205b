#include "migrate-agent/linux/procfs/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>

#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::procfs {
namespace {

constexpr std::size_t kMaxEntries = 65536;

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

}  // namespace

UniqueFd hold_root(pid_t pid) {
  const std::string root = pid == 0 ? "/" : "/proc/" + std::to_string(pid) + "/root";
  return UniqueFd(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
}

UniqueFd open_directory(const std::string& path, const UniqueFd& root) {
  if (!root) return {};
  open_how how{};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  return UniqueFd(
      static_cast<int>(::syscall(SYS_openat2, root.get(), path.c_str(), &how, sizeof(how))));
}

UniqueFd open_directory(const std::string& path, pid_t pid) {
  return open_directory(path, hold_root(pid));
}

std::multimap<ino_t, std::string> regular_files(const UniqueFd& directory) {
  std::multimap<ino_t, std::string> files;
  UniqueFd again(::openat(directory.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!again) return files;
  const std::unique_ptr<DIR, CloseDirectory> reading(::fdopendir(again.get()));
  if (!reading) return files;
  (void)again.release();
  std::size_t entries = 0;
  while (const dirent* entry = ::readdir(reading.get())) {
    if (++entries > kMaxEntries) break;
    if (entry->d_type == DT_REG) files.emplace(entry->d_ino, entry->d_name);
  }
  return files;
}

FileId file_at(const UniqueFd& directory, const std::string& name) {
  struct stat status {};
  if (::fstatat(directory.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return {};
  return {status.st_dev, status.st_ino};
}

FileId id_of(const UniqueFd& file) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return {};
  return {status.st_dev, status.st_ino};
}

FileId id_of(const std::string& path) { return id_of(hold(path)); }

}  // namespace gcr::procfs
