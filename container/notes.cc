#include "container/notes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "src/base/unique_fd.h"

namespace gcr::container {

Result<bool> has_note(const std::filesystem::path& directory, const std::string& name) {
  const std::string doing = "cannot use the directory " + directory.string();
  const UniqueFd folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder && errno == ENOENT) return false;
  struct stat facts {};
  if (!folder || ::fstat(folder.get(), &facts) != 0) return Error::from_errno(errno, doing);
  if (facts.st_uid != ::geteuid() || (facts.st_mode & 022) != 0) {
    return Error(Code::kRefused, doing + ": another user may write to it");
  }
  if (::fstatat(folder.get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0) return true;
  if (errno == ENOENT) return false;
  return Error::from_errno(errno, doing);
}

std::string id_in_group(std::string_view group) {
  constexpr std::size_t kDigits = 64;
  constexpr std::string_view kHexadecimal = "0123456789abcdef";
  while (!group.empty()) {
    const std::size_t last = group.find_last_of(kHexadecimal);
    if (last == std::string_view::npos) break;
    group = group.substr(0, last + 1);
    const std::size_t before = group.find_last_not_of(kHexadecimal);
    const std::size_t first = before == std::string_view::npos ? 0 : before + 1;
    if (group.size() - first == kDigits) return std::string(group.substr(first));
    group = group.substr(0, first);
  }
  return "";
}

}  // namespace gcr::container
