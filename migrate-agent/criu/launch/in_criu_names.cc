// A part of gcr-in-criu.so: how a restoring CRIU uses names.
//
// A task that is being restored still has root's rights, and CRIU opens, makes, binds and removes
// in it what the process had by name. A user who may write to a directory on the path can put
// another file there, or a symbolic link, at any moment. So each of these calls is made with the
// file system ids, the groups and the effective capabilities of the member that the task becomes:
// the kernel then allows what that member could do by itself, wherever the name leads. Files that
// had been removed are made below kRemovedFiles or kRemovedInContainer instead, which is root's
// alone.
#include <errno.h>
#include <linux/capability.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "migrate-agent/criu/launch/in_criu.h"
#include "migrate-agent/criu/launch/launch.h"

namespace gcr::criu::names {
namespace {

using launch::MemberRights;

pid_t criu = 0;          ///< the process that restricts; 0: none yet
char* rights = nullptr;  ///< kMemberRights, for good
std::size_t rights_size = 0;
struct stat root_directory;

/// CRIU's cache of the kernel's features, as the agent's mount namespace has it; names in the
/// process's would be hostile. -1: there is none.
constexpr char kFeatures[] = "/run/criu.kdat";
constexpr int kNotEntered = -2;
int features = kNotEntered;

/// An integer of a system call's result, with errno.
template <class... Arguments>
int call(long number, Arguments... arguments) {
  return static_cast<int>(syscall(number, arguments...));
}

bool is_restricted() { return criu != 0; }
bool is_criu_itself() { return getpid() == criu; }

/// False if the file is missing or damaged.
bool read_rights() {
  const int file = call(SYS_openat, AT_FDCWD, launch::kMemberRights, O_RDONLY | O_CLOEXEC);
  struct stat status;
  if (file < 0 || fstat(file, &status) != 0) return false;
  const auto size = static_cast<std::size_t>(status.st_size);
  rights = static_cast<char*>(malloc(size + 1));
  const bool whole = rights != nullptr && pread(file, rights, size, 0) == status.st_size;
  close(file);
  if (!whole) return false;
  for (std::size_t at = 0; at < size;) {
    MemberRights member;
    if (size - at < sizeof(member)) return false;
    memcpy(&member, rights + at, sizeof(member));
    at += sizeof(member);
    if ((size - at) / sizeof(gid_t) < member.groups) return false;
    at += member.groups * sizeof(gid_t);
  }
  rights_size = size;
  return true;
}

/// What a member may do; its groups are behind it.
const char* find_member(pid_t pid, MemberRights& member) {
  for (const char* at = rights; at < rights + rights_size;) {
    memcpy(&member, at, sizeof(member));
    at += sizeof(member);
    if (member.pid == pid) return at;
    at += member.groups * sizeof(gid_t);
  }
  return nullptr;
}

struct Capabilities {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2]{};

  bool get() { return call(SYS_capget, &header, sets) == 0; }
  bool set_effective(std::uint64_t wanted) {
    for (int word = 0; word < 2; ++word) {
      sets[word].effective = sets[word].permitted & static_cast<std::uint32_t>(wanted >> 32 * word);
    }
    return call(SYS_capset, &header, sets) == 0;
  }
  std::uint64_t effective() const {
    return sets[0].effective | static_cast<std::uint64_t>(sets[1].effective) << 32;
  }
};

/// While it lives, the calling task has the member's rights for names. With effective ids, which
/// the other end of a Unix socket sees too. CRIU's tasks have one thread.
class AsMember {
 public:
  AsMember() {
    MemberRights member;
    const char* const groups = find_member(getpid(), member);
    if (groups == nullptr || !own_.get()) return;
    uid_ = member.uid;
    const std::uint64_t all = own_.effective();
    if (member.uid == 0 && member.gid == 0 && (member.effective & all) == all) {
      is_member_ = true;
      return;
    }
    changed_ = true;
    own_effective_ = all;
    // Neither this nor what is permitted makes a difference to root's own calls.
    is_member_ = call(SYS_setgroups, member.groups, groups) == 0 &&
                 call(SYS_setresgid, -1, member.gid, -1) == 0 &&
                 call(SYS_setresuid, -1, member.uid, -1) == 0 && own_.get() &&
                 own_.set_effective(member.effective) && show_proc();
  }
  ~AsMember() {
    if (!changed_) return;
    const int error = errno;
    // Nothing goes on with the wrong rights.
    if (call(SYS_setresuid, -1, 0, -1) != 0 || call(SYS_setresgid, -1, 0, -1) != 0 || !own_.get() ||
        !own_.set_effective(own_effective_) || !show_proc()) {
      _exit(127);
    }
    errno = error;
  }
  AsMember(const AsMember&) = delete;
  AsMember& operator=(const AsMember&) = delete;

  /// False, with errno, for what is no member.
  bool ok() const {
    if (!is_member_) errno = EPERM;
    return is_member_;
  }
  uid_t uid() const { return uid_; }

 private:
  /// Other ids make the task one whose files in /proc are root's. CRIU sets this again in the end.
  static bool show_proc() { return prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0; }

  Capabilities own_;
  std::uint64_t own_effective_ = 0;
  uid_t uid_ = 0;
  bool changed_ = false;
  bool is_member_ = false;
};

bool is_root_directory(int directory) {
  struct stat status;
  return directory >= 0 && fstat(directory, &status) == 0 &&
         status.st_ino == root_directory.st_ino && status.st_dev == root_directory.st_dev;
}

bool begins(const char* path, const char* with) { return strncmp(path, with, strlen(with)) == 0; }

/// Whether a name, without the first slash, is below this directory.
bool is_below(const char* name, const char* directory) {
  return begins(name, directory + 1) && name[strlen(directory + 1)] == '/';
}

/// Whether it is a name that the agent has given to a removed file: nothing in them leads out.
bool is_removed_file(int directory, const char* path) {
  if (path[0] != '/' && !is_root_directory(directory)) return false;
  const char* const name = path[0] == '/' ? path + 1 : path;
  return is_below(name, launch::kRemovedFiles) || is_below(name, launch::kRemovedInContainer);
}

/// What a task opens by name is either the process's, from the root directory on, or CRIU's own:
/// images and /proc by their directories, and little else.
bool opens_members_file(int directory, const char* path) {
  if (!is_restricted() || is_criu_itself() || is_removed_file(directory, path)) return false;
  if (path[0] == '/') return !begins(path, "/proc/") && strcmp(path, "/dev/null") != 0;
  return is_root_directory(directory);
}

/// CRIU reads the program's file and the working directory, which the member needs only to execute
/// and to search. In the end the agent checks that no descriptor comes of it that may do more.
int open_executable(int directory, const char* path, int flags) {
  int found = -1;
  {
    const AsMember member;
    if (!member.ok()) return -1;
    found = call(SYS_openat, directory, path, O_PATH | O_CLOEXEC);
    struct stat status;
    if (found >= 0 &&
        (fstat(found, &status) != 0 || !(S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) ||
         call(SYS_faccessat2, found, "", X_OK, AT_EMPTY_PATH | AT_EACCESS) != 0)) {
      close(found);
      found = -1;
    }
  }
  if (found < 0) {
    errno = EACCES;
    return -1;
  }
  char link[32];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", found);
  const int file = call(SYS_openat, AT_FDCWD, link, flags);
  close(found);
  return file;
}

/// The cache is read, and never written.
int open_features(const char* path) {
  if (features >= 0 && strcmp(path, kFeatures) == 0)
    return call(SYS_fcntl, features, F_DUPFD_CLOEXEC, 0);
  errno = features >= 0 ? EROFS : ENOENT;
  return -1;
}

/// A lease on a regular file would delay its open by up to /proc/sys/fs/lease-break-time.
int open_without_waiting(int directory, const char* path, int flags, mode_t mode) {
  struct stat status;
  const bool may_wait = (flags & (O_NONBLOCK | O_PATH)) == 0 &&
                        fstatat(directory, path, &status, 0) == 0 && S_ISREG(status.st_mode);
  if (!may_wait) return call(SYS_openat, directory, path, flags, mode);
  constexpr timespec kPause{0, 10'000'000};
  constexpr int kMostTries = 100;
  int file = -1;
  for (int tries = 0; tries < kMostTries; ++tries) {
    file = call(SYS_openat, directory, path, flags | O_NONBLOCK, mode);
    if (file >= 0 || errno != EWOULDBLOCK) break;
    clock_nanosleep(CLOCK_MONOTONIC, 0, &kPause, nullptr);
  }
  const int status_flags = file < 0 ? -1 : fcntl(file, F_GETFL);
  if (status_flags >= 0) fcntl(file, F_SETFL, status_flags & ~O_NONBLOCK);
  return file;
}

/// In a task as its member; CRIU itself changes nothing by name but its own files.
template <class Work>
int change(int directory, const char* path, const Work& work) {
  const bool is_by_name = path[0] != '\0';  // else what `directory` is
  if (!is_restricted() || !is_by_name || is_removed_file(directory, path)) return work();
  if (is_criu_itself() && begins(path, kFeatures)) return work();
  const AsMember member;
  return member.ok() ? work() : -1;
}

/// The name of a Unix socket in the file system, with an end; false if it has none.
bool socket_name(const sockaddr* address, socklen_t size, char (&name)[sizeof(sockaddr_un)]) {
  constexpr socklen_t kBefore = offsetof(sockaddr_un, sun_path);
  if (size <= kBefore || size > sizeof(sockaddr_un) || address->sa_family != AF_UNIX) return false;
  memset(name, 0, sizeof(name));
  memcpy(name, reinterpret_cast<const char*>(address) + kBefore, size - kBefore);
  return name[0] != '\0';
}

/// Removes a socket of the member's: the program's own at the source, if that is this host or
/// shares the directory. All others stay, and are in the way.
void remove_old_socket(const char* name, uid_t owner) {
  struct stat status;
  if (fstatat(AT_FDCWD, name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(status.st_mode) &&
      status.st_uid == owner) {
    call(SYS_unlinkat, AT_FDCWD, name, 0);
  }
}

}  // namespace

void restrict_to_members() {
  if (stat("/", &root_directory) != 0) root_directory.st_ino = 0;
  if (!read_rights()) rights_size = 0;
  criu = getpid();
}

void keep_kernel_features() {
  features = call(SYS_openat, AT_FDCWD, kFeatures, O_RDONLY | O_CLOEXEC);
}

int open_at(int directory, const char* path, int flags, mode_t mode) {
  if (features != kNotEntered && begins(path, kFeatures)) return open_features(path);
  if (!opens_members_file(directory, path)) {
    return call(SYS_openat, directory, path, flags, mode);
  }
  int file = -1;
  {
    const AsMember member;
    if (!member.ok()) return -1;
    file = open_without_waiting(directory, path, flags, mode);
  }
  constexpr int kChanging = O_ACCMODE | O_CREAT | O_TRUNC;
  const bool only_reads = (flags & kChanging) == O_RDONLY;
  return file < 0 && errno == EACCES && only_reads ? open_executable(directory, path, flags) : file;
}

}  // namespace gcr::criu::names

namespace names = gcr::criu::names;
using names::call;
using names::change;

EXPORTED int mkdirat(int directory, const char* path, mode_t mode) noexcept {
  return change(directory, path, [&] { return call(SYS_mkdirat, directory, path, mode); });
}

EXPORTED int mkdir(const char* path, mode_t mode) noexcept { return mkdirat(AT_FDCWD, path, mode); }

EXPORTED int mknodat(int directory, const char* path, mode_t mode, dev_t device) noexcept {
  return change(directory, path, [&] { return call(SYS_mknodat, directory, path, mode, device); });
}

EXPORTED int mknod(const char* path, mode_t mode, dev_t device) noexcept {
  return mknodat(AT_FDCWD, path, mode, device);
}

EXPORTED int symlinkat(const char* target, int directory, const char* path) noexcept {
  return change(directory, path, [&] { return call(SYS_symlinkat, target, directory, path); });
}

EXPORTED int symlink(const char* target, const char* path) noexcept {
  return symlinkat(target, AT_FDCWD, path);
}

EXPORTED int linkat(int from_directory, const char* from, int directory, const char* path,
                    int flags) noexcept {
  return change(directory, path,
                [&] { return call(SYS_linkat, from_directory, from, directory, path, flags); });
}

EXPORTED int unlinkat(int directory, const char* path, int flags) noexcept {
  return change(directory, path, [&] { return call(SYS_unlinkat, directory, path, flags); });
}

EXPORTED int unlink(const char* path) noexcept { return unlinkat(AT_FDCWD, path, 0); }

EXPORTED int rmdir(const char* path) noexcept { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

EXPORTED int rename(const char* from, const char* to) noexcept {
  return change(AT_FDCWD, to, [&] { return call(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0); });
}

EXPORTED int fchownat(int directory, const char* path, uid_t uid, gid_t gid, int flags) noexcept {
  return change(directory, path,
                [&] { return call(SYS_fchownat, directory, path, uid, gid, flags); });
}

EXPORTED int fchmodat(int directory, const char* path, mode_t mode, int /*flags*/) noexcept {
  return change(directory, path, [&] { return call(SYS_fchmodat, directory, path, mode); });
}

EXPORTED int chmod(const char* path, mode_t mode) noexcept {
  return fchmodat(AT_FDCWD, path, mode, 0);
}

EXPORTED int lutimes(const char* path, const timeval* times) noexcept {
  const timespec exact[] = {{times[0].tv_sec, times[0].tv_usec * 1000},
                            {times[1].tv_sec, times[1].tv_usec * 1000}};
  return change(AT_FDCWD, path,
                [&] { return call(SYS_utimensat, AT_FDCWD, path, exact, AT_SYMLINK_NOFOLLOW); });
}

EXPORTED int bind(int fd, const sockaddr* address, socklen_t size) noexcept {
  char name[sizeof(sockaddr_un)];
  if (!names::is_restricted() || !names::socket_name(address, size, name)) {
    return call(SYS_bind, fd, address, size);
  }
  const names::AsMember member;
  if (!member.ok()) return -1;
  names::remove_old_socket(name, member.uid());
  return call(SYS_bind, fd, address, size);
}

EXPORTED int connect(int fd, const sockaddr* address, socklen_t size) {
  char name[sizeof(sockaddr_un)];
  if (!names::is_restricted() || !names::socket_name(address, size, name)) {
    return call(SYS_connect, fd, address, size);
  }
  const names::AsMember member;
  return member.ok() ? call(SYS_connect, fd, address, size) : -1;
}

EXPORTED int openat(int directory, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = names::mode_in(rest, flags);
  va_end(rest);
  return openat64(directory, path, flags, mode);
}

EXPORTED int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = names::mode_in(rest, flags);
  va_end(rest);
  return openat64(AT_FDCWD, path, flags, mode);
}

EXPORTED int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = names::mode_in(rest, flags);
  va_end(rest);
  return openat64(AT_FDCWD, path, flags, mode);
}

// What a C library's headers call where flags are only known when it runs.
// NOLINTBEGIN(bugprone-reserved-identifier): glibc's names
EXPORTED int __openat64_2(int directory, const char* path, int flags) {
  return openat64(directory, path, flags);
}
EXPORTED int __openat_2(int directory, const char* path, int flags) {
  return openat64(directory, path, flags);
}
EXPORTED int __open64_2(const char* path, int flags) { return openat64(AT_FDCWD, path, flags); }
EXPORTED int __open_2(const char* path, int flags) { return openat64(AT_FDCWD, path, flags); }
// NOLINTEND(bugprone-reserved-identifier)
