#include "container/received.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace gcr::container {

Result<Received> Received::open(const std::filesystem::path& path) {
  const std::string doing = "cannot use the directory " + path.string();
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) return Error::from_errno(error.value(), doing);
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return Error::from_errno(errno, doing);
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat facts {};
  if (!folder || ::fstat(folder.get(), &facts) != 0) return Error::from_errno(errno, doing);
  if (facts.st_uid == ::geteuid() && (facts.st_mode & 022) == 0) {
    return Received(path, std::move(folder));
  }
  return Error(Code::kRefused, doing + ": another user may write to it");
}

Result<bool> Received::has(const std::string& name) const {
  struct stat facts {};
  if (::fstatat(folder_.get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0) return true;
  if (errno == ENOENT) return false;
  return Error::from_errno(errno, "cannot read " + (path_ / name).string());
}

Status Received::add(const std::string& name) const {
  const std::string doing = "cannot create " + (path_ / name).string();
  const UniqueFd file(
      ::openat(folder_.get(), name.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file || ::fsync(file.get()) != 0 || ::fsync(folder_.get()) != 0) {
    return Error::from_errno(errno, doing);
  }
  return {};
}

}  // namespace gcr::container
