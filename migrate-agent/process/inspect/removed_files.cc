#include "migrate-agent/process/inspect/removed_files.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <string>

#include "migrate-agent/linux/procfs/directory.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/access.h"
#include "migrate-agent/process/inspect/credentials.h"
#include "migrate-agent/process/inspect/sharing.h"
#include "src/base/unique_fd.h"

namespace gcr::process {
namespace {

struct RemovedFile {
  UniqueFd file;
  std::string what;  ///< "descriptor 3, /var/log/service (deleted)"
  bool reads = false;
};

using RemovedFiles = std::map<procfs::FileId, RemovedFile>;

/// `link` is the kernel's link to the file itself.
void add(const std::string& link, const std::string& what, bool reads, RemovedFiles& removed) {
  UniqueFd file = procfs::hold(link);
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return;
  if (!S_ISREG(status.st_mode) || status.st_nlink != 0) return;
  RemovedFile& one = removed[{status.st_dev, status.st_ino}];
  one.reads |= reads;
  if (!one.file) {
    one.file = std::move(file);
    one.what = what;
  }
}

RemovedFiles removed_files_of(pid_t pid) {
  const std::string process = fmt::format("/proc/{}", pid);
  RemovedFiles removed;
  for (const auto& [number, link] : procfs::descriptor_links(pid)) {
    if (!link.starts_with('/') || is_driver_file(link)) continue;
    const bool reads = (open_mode(process, std::to_string(number)) & R_OK) != 0;
    add(fmt::format("{}/fd/{}", process, number), fmt::format("descriptor {}, {},", number, link),
        reads, removed);
  }
  add(process + "/exe", "its program", false, removed);
  return removed;
}

}  // namespace

Status look_at_removed_files(pid_t pid, findings::Findings& findings) {
  RemovedFiles unread = removed_files_of(pid);
  std::erase_if(unread, [](const auto& one) { return one.second.reads; });
  if (unread.empty()) return {};
  Status tried;
  GCR_TRY(find_rights(pid, [&](const proto::Credentials& who) {
    tried = act_as(who, [&] {
      std::erase_if(unread, [](const auto& one) { return try_held(one.second.file, R_OK) == 0; });
    });
    return !tried || unread.empty();
  }));
  GCR_TRY(tried);
  for (const auto& [id, one] : unread) {
    findings.add(findings::kDeletedFileAccess,
                 fmt::format("{} is a removed file that the process may not read", one.what));
  }
  return {};
}

}  // namespace gcr::process
