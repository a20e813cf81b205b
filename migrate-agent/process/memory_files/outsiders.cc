#include "migrate-agent/process/memory_files/outsiders.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <string>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/files.h"
#include "migrate-agent/process/inspect/together.h"

namespace gcr::memory_files {
namespace {

using procfs::FileId;

/// The file behind a descriptor; no file server is asked.
FileId file_behind(pid_t pid, int descriptor) {
  const std::string link = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor);
  struct statx status {};
  if (::statx(AT_FDCWD, link.c_str(), AT_STATX_DONT_SYNC, STATX_INO, &status) != 0) return {};
  return {makedev(status.stx_dev_major, status.stx_dev_minor), status.stx_ino};
}

/// Those of `files` that the process has.
std::set<FileId> had_by(pid_t pid, const std::set<FileId>& files) {
  std::set<FileId> had;
  for (const process::Mapping& mapping : process::named_mappings(pid)) {
    const FileId id{mapping.device, mapping.inode};
    if (files.contains(id)) had.insert(id);
  }
  for (const auto& [number, link] : procfs::descriptor_links(pid)) {
    if (!link.starts_with('/')) continue;
    const FileId id = file_behind(pid, number);
    if (files.contains(id)) had.insert(id);
  }
  return had;
}

}  // namespace

std::map<FileId, pid_t> outsiders(const std::set<FileId>& files, const std::set<pid_t>& members) {
  std::map<FileId, pid_t> found;
  if (files.empty()) return found;
  for (const pid_t pid : procfs::processes()) {
    if (members.contains(pid)) continue;
    const std::set<FileId> had = had_by(pid, files);
    if (had.empty() || process::is_agent_or_gone(pid)) continue;
    for (const FileId& file : had) found.emplace(file, pid);
  }
  return found;
}

}  // namespace gcr::memory_files
