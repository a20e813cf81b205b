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
bool set_id(long call, unsigned id) {
  ::syscall(call, id);
  return static_cast<unsigned>(::syscall(call, -1)) == id;
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
  failed_ = !set_groups({}) || !set_id(SYS_setfsgid, owner.gid) || !set_id(SYS_setfsuid, owner.uid);
  if (failed_) restore();
}

AsOwner::~AsOwner() { restore(); }

void AsOwner::restore() {
  if (!std::exchange(changed_, false)) return;
  if (set_id(SYS_setfsuid, uid_) && set_id(SYS_setfsgid, gid_) && set_groups(groups_)) return;
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
