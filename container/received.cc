#include "container/received.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "src/base/unique_fd.h"

namespace gcr::container {

Result<bool> has_received(const std::filesystem::path& directory, const std::string& key) {
  const std::string doing = "cannot use the directory " + directory.string();
  const UniqueFd folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder && errno == ENOENT) return false;
  struct stat facts {};
  if (!folder || ::fstat(folder.get(), &facts) != 0) return Error::from_errno(errno, doing);
  if (facts.st_uid != ::geteuid() || (facts.st_mode & 022) != 0) {
    return Error(Code::kRefused, doing + ": another user may write to it");
  }
  if (::fstatat(folder.get(), key.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0) return true;
  if (errno == ENOENT) return false;
  return Error::from_errno(errno, doing);
}

}  // namespace gcr::container
