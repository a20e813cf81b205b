// Uses system calls directly, because glibc's setgroups() changes all threads of the process.
#include "store/owner.h"

#include <fmt/format.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

#include "src/base/log.h"

namespace gcr::store {
namespace {

bool set_groups(const std::vector<gid_t>& groups) {
  return ::syscall(SYS_setgroups, groups.size(), groups.data()) == 0;
}

// setfsuid and setfsgid return the previous id, even on failure; with -1 they change nothing. So
// the result of a change must be queried.
bool set_user(uid_t uid) {
  ::syscall(SYS_setfsuid, uid);
  return static_cast<uid_t>(::syscall(SYS_setfsuid, -1)) == uid;
}

bool set_group(gid_t gid) {
  ::syscall(SYS_setfsgid, gid);
  return static_cast<gid_t>(::syscall(SYS_setfsgid, -1)) == gid;
}

std::vector<gid_t> own_groups() {
  const int count = ::getgroups(0, nullptr);
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(count, 0)));
  ::getgroups(count, groups.data());
  return groups;
}

}  // namespace

AsOwner::AsOwner(const Owner& owner) {
  if (::geteuid() != 0) return;
  groups_ = own_groups();
  uid_ = static_cast<uid_t>(::syscall(SYS_setfsuid, -1));
  gid_ = static_cast<gid_t>(::syscall(SYS_setfsgid, -1));
  changed_ = true;
  // The user id last: without root's id the other calls would fail.
  failed_ = !set_groups({}) || !set_group(owner.gid) || !set_user(owner.uid);
  if (failed_) restore();
}

AsOwner::~AsOwner() { restore(); }

void AsOwner::restore() {
  if (!std::exchange(changed_, false)) return;
  if (set_user(uid_) && set_group(gid_) && set_groups(groups_)) return;
  spdlog::critical("internal error: cannot restore the file access rights of this thread");
  std::abort();
}

Status AsOwner::status() const {
  if (!failed_) return {};
  return Error(Code::kPermissionDenied,
               "cannot access files with their owner's rights: the kernel refuses setfsuid, which "
               "needs CAP_SETUID and CAP_SETGID");
}

}  // namespace gcr::store
