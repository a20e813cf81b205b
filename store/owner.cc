// Uses system calls directly, because glibc's setgroups() changes all threads of the process.
#include "store/owner.h"

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

Result<AsOwner> AsOwner::take(const Owner& owner) {
  AsOwner as;
  if (::geteuid() != 0) return as;
  as.previous_ = {static_cast<uid_t>(::syscall(SYS_setfsuid, -1)),
                  static_cast<gid_t>(::syscall(SYS_setfsgid, -1)), own_groups()};
  // The user id last: without root's id the other calls would fail.
  if (set_groups({}) && set_id(SYS_setfsgid, owner.gid) && set_id(SYS_setfsuid, owner.uid)) {
    return as;
  }
  return Error(Code::kPermissionDenied,
               "cannot access files with their owner's rights: the kernel refuses setfsuid, which "
               "needs CAP_SETUID and CAP_SETGID");
}

AsOwner::~AsOwner() {
  if (!previous_ || (set_id(SYS_setfsuid, previous_->uid) && set_id(SYS_setfsgid, previous_->gid) &&
                     set_groups(previous_->groups))) {
    return;
  }
  spdlog::critical("internal error: cannot restore the file access rights of this thread");
  std::abort();
}

}  // namespace gcr::store
