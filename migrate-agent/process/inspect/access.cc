#include "migrate-agent/process/inspect/access.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <map>
#include <thread>

#include "migrate-agent/linux/procfs/directory.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/credentials.h"
#include "migrate-agent/process/inspect/sharing.h"

namespace gcr::process {
namespace {

constexpr int kFileSystemId = 3;  ///< among the ids of Credentials

bool has_ids(const proto::Credentials& who) {
  return who.uids_size() > kFileSystemId && who.gids_size() > kFileSystemId;
}

Status check_ids(const proto::Credentials& who) {
  if (has_ids(who)) return {};
  return Error(Code::kProtocol, "the ids of the process are missing");
}

bool set_capabilities(std::uint64_t effective) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> sets{};
  if (::syscall(SYS_capget, &header, sets.data()) != 0) return false;
  for (std::size_t word = 0; word < sets.size(); ++word) {
    sets[word].permitted &= static_cast<std::uint32_t>(effective >> 32 * word);
    sets[word].effective = sets[word].permitted;
    sets[word].inheritable = 0;
  }
  return ::syscall(SYS_capset, &header, sets.data()) == 0;
}

/// For the calling thread only: raw system calls, because C libraries apply these to all threads of
/// a process.
bool become(const proto::Credentials& who) {
  const auto uid = who.uids(kFileSystemId);
  const auto gid = who.gids(kFileSystemId);
  if (::syscall(SYS_setgroups, who.groups_size(), who.groups().data()) != 0) return false;
  errno = EPERM;  // these two calls do not report errors
  ::syscall(SYS_setfsgid, gid);
  if (static_cast<std::uint32_t>(::syscall(SYS_setfsgid, -1)) != gid) return false;
  ::syscall(SYS_setfsuid, uid);
  if (static_cast<std::uint32_t>(::syscall(SYS_setfsuid, -1)) != uid) return false;
  return set_capabilities(who.effective());
}

int try_one(const WantedAccess& wanted) {
  const UniqueFd file = procfs::hold(wanted.path);
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return errno;
  if (std::pair(status.st_dev, status.st_ino) != wanted.file) return ESTALE;
  return wanted.access == 0 ? 0 : try_held(file, wanted.access);
}

struct RemovedFile {
  UniqueFd file;
  std::string what;  ///< "descriptor 3, /var/log/service (deleted)"
  bool reads = false;
};

using RemovedFiles = std::map<procfs::FileId, RemovedFile>;

/// `link` is the kernel's link to the file itself.
void add_if_removed(const std::string& link, const std::string& what, bool reads,
                    RemovedFiles& removed) {
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
    const bool reads = (open_mode(pid, number) & R_OK) != 0;
    add_if_removed(fmt::format("{}/fd/{}", process, number),
                   fmt::format("descriptor {}, {},", number, link), reads, removed);
  }
  add_if_removed(process + "/exe", "its program", false, removed);
  return removed;
}

}  // namespace

Status act_as(const proto::Credentials& who, const std::function<void()>& work) {
  GCR_TRY(check_ids(who));
  int failed = 0;
  std::thread([&] {
    if (become(who)) return work();
    failed = errno;
  }).join();
  if (failed == 0) return {};
  return Error::from_errno(failed, "cannot set the user and group ids of the process");
}

bool is_owner(const proto::Credentials& who, uid_t user) {
  return has_ids(who) && who.uids(kFileSystemId) == user;
}

std::uint32_t open_mode(pid_t pid, int number) {
  const auto flags =
      std::strtoul(procfs::descriptor_field(pid, number, "flags").c_str(), nullptr, 8);
  if ((flags & O_PATH) != 0) return F_OK;
  switch (flags & O_ACCMODE) {
    case O_RDONLY:
      return R_OK;
    case O_WRONLY:
      return W_OK;
    default:
      return R_OK | W_OK;
  }
}

int try_held(const UniqueFd& file, std::uint32_t access) {
  const long denied = ::syscall(SYS_faccessat2, file.get(), "", access, AT_EMPTY_PATH | AT_EACCESS);
  return denied == 0 ? 0 : errno;
}

Result<std::vector<int>> try_access(const proto::Credentials& who,
                                    const std::vector<WantedAccess>& wanted) {
  GCR_TRY(check_ids(who));
  std::vector<int> results(wanted.size(), 0);
  // It passes every check of owners and permissions.
  if ((who.effective() >> CAP_DAC_OVERRIDE & 1) != 0) return results;
  GCR_TRY(act_as(who, [&] {
    for (std::size_t at = 0; at < wanted.size(); ++at) results[at] = try_one(wanted[at]);
  }));
  return results;
}

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
