#include "migrate-agent/process/layer/removal.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "migrate-agent/process/layer/beneath.h"

namespace gcr::layer {
namespace {

Error cannot_remove(const char* what, const std::string& path) {
  return Error::from_errno(errno, fmt::format("cannot {} {}", what, shown_path(path)));
}

class Removal {
 public:
  Removal(const UniqueFd& top, Notes& notes) : top_(top), notes_(notes) {}

  /// Directories above others are removed after them; the list grows while it is read.
  Result<bool> run(const std::string& path, bool itself) {
    directories_.push_back(path);
    for (std::size_t at = 0; at < directories_.size(); ++at) {
      GCR_TRY(remove_files(std::string(directories_[at])));
    }
    if (!itself) directories_.erase(directories_.begin());
    for (; !directories_.empty(); directories_.pop_back()) GCR_TRY(remove(directories_.back()));
    return is_empty_;
  }

 private:
  Status remove_files(const std::string& path) {
    const auto names = names_in(top_, path, kMaxEntries);
    const UniqueFd parent = hold_beneath(top_, path);
    if (!names || !parent) return cannot_remove("empty", path);
    for (const std::string& name : *names) {
      const std::string file = join(path, name);
      const auto status = look(parent, name);
      if (!status && errno == ENOENT) continue;
      if (!status) return cannot_remove("examine", file);
      if (is_mount_point(*status)) {
        is_empty_ = false;
        notes_.add(fmt::format("{} is a mount point here and stays", shown_path(file)));
      } else if (S_ISDIR(status->stx_mode)) {
        directories_.push_back(file);
      } else if (::unlinkat(parent.get(), name.c_str(), 0) != 0 && errno != ENOENT) {
        return cannot_remove("remove", file);
      }
    }
    return {};
  }

  Status remove(const std::string& path) {
    const UniqueFd parent = hold_beneath(top_, parent_of(path));
    if (!parent) return cannot_remove("remove", path);
    if (::unlinkat(parent.get(), name_of(path).c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) {
      return {};
    }
    if (errno != ENOTEMPTY && errno != EEXIST) return cannot_remove("remove", path);
    is_empty_ = false;
    return {};
  }

  const UniqueFd& top_;
  Notes& notes_;
  std::vector<std::string> directories_;
  bool is_empty_ = true;
};

}  // namespace

Result<bool> empty_directory(const UniqueFd& top, const std::string& path, Notes& notes) {
  return Removal(top, notes).run(path, false);
}

Result<bool> remove_directory(const UniqueFd& top, const std::string& path, Notes& notes) {
  return Removal(top, notes).run(path, true);
}

}  // namespace gcr::layer
