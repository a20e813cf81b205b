#include "migrate-agent/process/memory_files/release.h"

#include <errno.h>
#include <fmt/format.h>
#include <unistd.h>

#include "migrate-agent/commit/journal/held_files.h"
#include "migrate-agent/linux/procfs/directory.h"
#include "migrate-agent/process/inspect/access.h"
#include "src/base/log.h"

namespace gcr::memory_files {
namespace {

namespace fs = std::filesystem;

/// With the rights of the calling thread. True if the name is in this view of the files: it is gone
/// afterwards, unless the thread may not remove it.
Result<bool> remove_name(const fs::path& name, const procfs::FileId& id, const UniqueFd& root) {
  const UniqueFd directory = procfs::open_directory(name.parent_path(), root);
  const auto found = directory ? procfs::file_at(directory, name.filename()) : procfs::FileId();
  if (found == id) {
    if (::unlinkat(directory.get(), name.filename().c_str(), 0) == 0 || errno == ENOENT)
      return true;
    if (errno != EACCES && errno != EPERM) {
      return Error::from_errno(errno, fmt::format("cannot remove {}", name.native()));
    }
  } else if (found != procfs::FileId() || errno != EACCES) {
    return false;
  }
  spdlog::warn("{} stays: its owner may not remove it", name.native());
  return true;
}

/// Removes all of them, each from the first view that has it.
Status remove_all(const std::vector<std::string>& names, const procfs::FileId& id,
                  const std::vector<UniqueFd>& roots) {
  for (const std::string& name : names) {
    for (const UniqueFd& root : roots) {
      GCR_ASSIGN(const bool found, remove_name(name, id, root));
      if (found) break;
    }
  }
  return {};
}

}  // namespace

Status remove_names(const journal::HeldFiles& files, Which which, const std::vector<pid_t>& pids) {
  std::vector<UniqueFd> roots;
  for (const pid_t pid : pids) {
    UniqueFd root = procfs::hold_root(pid);
    if (root) roots.push_back(std::move(root));
  }
  roots.push_back(procfs::hold_root(0));
  for (const journal::HeldFile& file : files.files()) {
    std::vector<std::string> names(file.made().begin(), file.made().end());
    if (which == Which::kAll) {
      names.insert(names.end(), file.carried().begin(), file.carried().end());
    }
    if (names.empty()) continue;
    if (!file.has_owner()) {  // noted by an agent of an earlier release
      spdlog::warn("{} stays: nothing tells who owned it", names.front());
      continue;
    }
    Status removed;
    GCR_TRY(process::act_as(file.owner(), [&] {
      removed = remove_all(names, {file.device(), file.inode()}, roots);
    }));
    GCR_TRY(removed);
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
