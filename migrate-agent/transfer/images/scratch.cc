#include "migrate-agent/transfer/images/scratch_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include "src/base/log.h"

namespace gcr::images {

Result<ScratchDirectory> ScratchDirectory::create(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) {
    return Error::from_errno(error.value(),
                             fmt::format("cannot create {}", path.parent_path().string()));
  }
  Reserve reserve;
  for (UniqueFd& fd : reserve) {
    fd.reset(::open("/", O_PATH | O_CLOEXEC));
    if (!fd) return Error::from_errno(errno, fmt::format("cannot create {}", path.string()));
  }
  if (::mkdir(path.c_str(), 0700) != 0) {
    return Error::from_errno(errno, fmt::format("cannot create {}", path.string()));
  }
  return ScratchDirectory(path, std::move(reserve));
}

ScratchDirectory::~ScratchDirectory() {
  if (path_.empty()) return;
  reserve_ = {};
  std::error_code error;
  std::filesystem::remove_all(path_, error);
  if (error) spdlog::warn("cannot remove {}: {}", path_.string(), error.message());
}

}  // namespace gcr::images
