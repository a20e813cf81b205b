#include "migrate-agent/memory_files/release.h"

#include <errno.h>
#include <fmt/format.h>
#include <unistd.h>

#include "migrate-agent/journal/held_files.h"
#include "migrate-agent/procfs/directory.h"

namespace gcr::memory_files {
namespace {

namespace fs = std::filesystem;

/// True if the name is in this view of the files, and gone afterwards.
Result<bool> remove_name(const fs::path& name, const procfs::FileId& id, pid_t pid) {
  const UniqueFd directory = procfs::open_directory(name.parent_path(), pid);
  if (!directory || procfs::file_at(directory, name.filename()) != id) return false;
  if (::unlinkat(directory.get(), name.filename().c_str(), 0) == 0 || errno == ENOENT) return true;
  return Error::from_errno(errno, fmt::format("cannot remove {}", name.native()));
}

}  // namespace

Status remove_names(const journal::HeldFiles& files, Which which, const std::vector<pid_t>& pids) {
  for (const journal::HeldFile& file : files.files()) {
    std::vector<std::string> names(file.made().begin(), file.made().end());
    if (which == Which::kAll) {
      names.insert(names.end(), file.carried().begin(), file.carried().end());
    }
    const procfs::FileId id{file.device(), file.inode()};
    for (const std::string& name : names) {
      bool removed = false;
      for (std::size_t at = 0; at <= pids.size() && !removed; ++at) {
        GCR_ASSIGN(removed, remove_name(name, id, at < pids.size() ? pids[at] : 0));
      }
    }
  }
  return {};
}

Status release(const fs::path& journal, bool restarted, Which which,
               const std::vector<pid_t>& pids) {
  GCR_ASSIGN(const journal::HeldFiles files, journal::kept_files(journal));
  if (!restarted) GCR_TRY(remove_names(files, which, pids));
  return journal::forget_files(journal);
}

}  // namespace gcr::memory_files
