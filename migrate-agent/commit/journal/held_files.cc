#include "migrate-agent/commit/journal/held_files.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include "migrate-agent/commit/journal/file.h"
#include "src/base/unique_fd.h"

namespace gcr::journal {
namespace {

namespace fs = std::filesystem;

/// Returns STATE_DIR/files/NAME for the journal STATE_DIR/journal/NAME.
fs::path list_of(const fs::path& journal) {
  return journal.parent_path().parent_path() / "files" / journal.filename();
}

Status write(const fs::path& path, const std::string& content) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file) return Error::from_errno(errno, fmt::format("cannot create {}", path.native()));
  std::size_t written = 0;
  return write_through(file.get(), std::as_bytes(std::span(content)), 0, written);
}

}  // namespace

Status keep_files(const fs::path& journal, const HeldFiles& files) {
  const fs::path list = list_of(journal);
  const fs::path draft = list.native() + ".new";
  if (::mkdir(list.parent_path().c_str(), 0700) != 0 && errno != EEXIST) {
    return Error::from_errno(errno, fmt::format("cannot create {}", list.parent_path().native()));
  }
  GCR_TRY(write(draft, files.SerializeAsString()));
  if (::rename(draft.c_str(), list.c_str()) != 0) {
    return Error::from_errno(errno, fmt::format("cannot create {}", list.native()));
  }
  GCR_TRY(sync_directory(list.parent_path()));
  return sync_directory(list.parent_path().parent_path());
}

Result<HeldFiles> kept_files(const fs::path& journal) {
  const fs::path list = list_of(journal);
  std::ifstream file(list, std::ios::binary);
  HeldFiles files;
  if (!file) {
    if (errno == ENOENT) return files;
    return Error::from_errno(errno, fmt::format("cannot read {}", list.native()));
  }
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  if (file.bad() || !files.ParseFromString(content)) {
    return Error(Code::kDataLoss, fmt::format("{} is damaged", list.native()));
  }
  return files;
}

Status forget_files(const fs::path& journal) {
  const fs::path list = list_of(journal);
  for (const fs::path& path : {list, fs::path(list.native() + ".new")}) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
      return Error::from_errno(errno, fmt::format("cannot remove {}", path.native()));
    }
  }
  return {};
}

}  // namespace gcr::journal
