#include "store/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "src/base/units.h"
#include "src/base/users.h"

namespace gcr::store {
namespace {

constexpr std::size_t kMaxEntries = 1'000'000;
constexpr std::size_t kMaxNameBytes = 128;
constexpr const char* kLockFile = "writing";

template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

/// Opens `path` below `directory`; concurrent changes of the path cannot lead out of it.
int open_below(int directory, const std::string& path, int flags) {
  open_how how{};
  how.flags = static_cast<__u64>(flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  const bool makes = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  how.mode = makes ? 0600 : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  return static_cast<int>(uninterrupted(
      [&] { return ::syscall(SYS_openat2, directory, path.c_str(), &how, sizeof how); }));
}

std::string leaf_of(const std::string& name) { return name.substr(name.rfind('/') + 1); }

/// Syncs a folder; returns 0 or an errno. EINVAL (no such operation) counts as success.
int sync_folder(int fd) {
  const int error = sync_file(fd);
  return error == EINVAL ? 0 : error;
}

bool is_one_file(int one_folder, int other_folder, const std::string& one,
                 const std::string& other) {
  struct stat a {};
  struct stat b {};
  return ::fstatat(one_folder, one.c_str(), &a, AT_SYMLINK_NOFOLLOW) == 0 &&
         ::fstatat(other_folder, other.c_str(), &b, AT_SYMLINK_NOFOLLOW) == 0 &&
         a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/// Renames by link and unlink, for file systems without RENAME_NOREPLACE. Returns 0 or an errno.
int rename_by_link(int from_folder, int to_folder, const std::string& from, const std::string& to) {
  if (::linkat(from_folder, from.c_str(), to_folder, to.c_str(), 0) == 0) {
    if (::unlinkat(from_folder, from.c_str(), 0) == 0) return 0;
    const int error = errno;
    if (error == ENOENT) ::unlinkat(to_folder, to.c_str(), 0);  // another host has renamed it
    return error;
  }
  if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS) return errno;
  struct stat facts {};
  if (::fstatat(to_folder, to.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0) return EEXIST;
  // No other process creates `to` meanwhile: this process holds the lock.
  return ::renameat(from_folder, from.c_str(), to_folder, to.c_str()) == 0 ? 0 : errno;
}

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

}  // namespace

bool is_name(std::string_view name) {
  constexpr std::string_view kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

bool is_entry(std::string_view name) {
  if (name == "packs" || name == kLockFile || name.starts_with(".nfs")) return true;
  if (name.ends_with(".new")) name.remove_suffix(4);
  if (name.ends_with(".restoring")) {
    return Uuid::parse(name.substr(0, name.size() - 10)).has_value();
  }
  if (name.ends_with(".voted")) return Uuid::parse(name.substr(0, name.size() - 6)).has_value();
  return name.ends_with(".checkpoint") && is_name(name.substr(0, name.size() - 11));
}

Result<Directory> Directory::open(const std::filesystem::path& path, const Owner& owner) {
  if (!path.is_absolute()) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{} is not an absolute path: give the full path", path.native()));
  }
  GCR_ASSIGN(const AsOwner as, AsOwner::take(owner));
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return Error::from_errno(errno, fmt::format("cannot open {}", path.native()));
  struct stat facts {};
  if (::fstat(fd.get(), &facts) != 0) {
    return Error::from_errno(errno, fmt::format("cannot examine {}", path.native()));
  }
  if (facts.st_uid != owner.uid) {
    return Error(Code::kRefused,
                 fmt::format("{} belongs to {}, not to {}: name a directory that belongs to the "
                             "job's user",
                             path.native(), describe_user(facts.st_uid), describe_user(owner.uid)));
  }
  if ((facts.st_mode & 077) != 0) {
    return Error(Code::kRefused,
                 fmt::format("{} is open to other users (mode {:04o}), and checkpoints contain all "
                             "memory of a job: chmod 700 {}",
                             path.native(), facts.st_mode & 07777, path.native()));
  }
  return Directory(path, owner, std::move(fd));
}

Result<Directory> Directory::create(const std::filesystem::path& path, const Owner& owner) {
  {
    GCR_ASSIGN(const AsOwner as, AsOwner::take(owner));
    if (path.is_absolute() && ::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
      return Error::from_errno(errno, fmt::format("cannot create {}", path.native()));
    }
  }
  GCR_ASSIGN(Directory directory, open(path, owner));
  GCR_TRY(directory.check_entries());
  GCR_TRY(directory.sync_parent());
  GCR_TRY(directory.make_packs());
  return directory;
}

Status Directory::check_entries() const {
  GCR_ASSIGN(const auto entries, list(""));
  const auto foreign = std::ranges::find_if_not(entries, is_entry);
  if (foreign == entries.end()) return {};
  return Error(
      Code::kRefused,
      fmt::format("{} has \"{}\", which belongs to no checkpoint: name a directory that is "
                  "used only for checkpoints",
                  path_.native(), *foreign));
}

/// Makes the directory's name durable. If the owner may not read the parent, syncs its whole file
/// system.
Status Directory::sync_parent() const {
  GCR_ASSIGN(const AsOwner as, AsOwner::take(owner_));
  const UniqueFd parent(::open(path_.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  int error = parent ? sync_folder(parent.get()) : errno;
  if (error == EACCES) error = ::syncfs(fd_.get()) == 0 ? 0 : errno;
  return error == 0 ? Status() : failed(error, "cannot sync the directory's name to disk");
}

Status Directory::make_packs() const {
  GCR_ASSIGN(const AsOwner as, AsOwner::take(owner_));
  if (::mkdirat(fd_.get(), "packs", 0700) == 0 || errno == EEXIST) return {};
  return failed(errno, "cannot create packs");
}

Result<std::vector<std::string>> Directory::names() const {
  constexpr std::string_view kSuffix = ".checkpoint";
  GCR_ASSIGN(const auto entries, list(""));
  std::vector<std::string> names;
  for (const std::string& entry : entries) {
    if (!entry.ends_with(kSuffix)) continue;
    std::string name = entry.substr(0, entry.size() - kSuffix.size());
    if (is_name(name)) names.push_back(std::move(name));
  }
  return names;
}

Result<UniqueFd> Directory::lock() const {
  GCR_ASSIGN(UniqueFd file, open_file(kLockFile, O_RDWR | O_CREAT));
  if (uninterrupted([&] { return ::flock(file.get(), LOCK_EX | LOCK_NB); }) == 0) return file;
  if (errno == EWOULDBLOCK) {
    return Error(
        Code::kRefused,
        fmt::format("another checkpoint is being written to {}, or it is being pruned: try "
                    "again when that has ended",
                    path_.native()));
  }
  return Error(Code::kUnsupported,
               fmt::format("cannot lock {}, which protects it from concurrent writers ({}): name a "
                           "directory on a file system with flock",
                           path_.native(), std::generic_category().message(errno)));
}

Result<UniqueFd> Directory::open_file(const std::string& name, int flags) const {
  GCR_ASSIGN(const AsOwner as, AsOwner::take(owner_));
  UniqueFd file(open_below(fd_.get(), name, flags));
  struct stat facts {};
  if (!file || ::fstat(file.get(), &facts) != 0) {
    return failed(errno, fmt::format("cannot open {}", name));
  }
  if (!S_ISREG(facts.st_mode)) {
    return Error(Code::kRefused, fmt::format("{}/{} is not a regular file", path_.native(), name));
  }
  return file;
}

Result<UniqueFd> Directory::make_unnamed(const std::string& folder) const {
  GCR_ASSIGN(const AsOwner as, AsOwner::take(owner_));
  UniqueFd file(open_below(fd_.get(), folder, O_RDWR | O_TMPFILE));
  if (file || errno == EOPNOTSUPP || errno == EISDIR || errno == ENOSYS) return file;
  return failed(errno, fmt::format("cannot create a file in {}", folder));
}

Status Directory::give_name(const UniqueFd& file, const std::string& name) const {
  GCR_ASSIGN(const AsOwner as, AsOwner::take(owner_));
  GCR_ASSIGN(const UniqueFd folder, folder_of(name));
  const std::string link = fmt::format("/proc/self/fd/{}", file.get());
  if (::linkat(AT_FDCWD, link.c_str(), folder.get(), leaf_of(name).c_str(), AT_SYMLINK_FOLLOW) ==
      0) {
    return {};
  }
  return failed(errno, fmt::format("cannot name {}", name));
}

Result<bool> Directory::exists(const std::string& name) const {
  GCR_ASSIGN(const AsOwner as, AsOwner::take(owner_));
  struct stat facts {};
  if (::fstatat(fd_.get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0) return true;
  if (errno == ENOENT) return false;
  return failed(errno, fmt::format("cannot examine {}", name));
}

/// Opens the folder of a file. The calling thread already has the owner's rights.
Result<UniqueFd> Directory::folder_of(const std::string& name) const {
  const auto slash = name.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : name.substr(0, slash);
  UniqueFd fd(open_below(fd_.get(), folder, O_RDONLY | O_DIRECTORY));
  if (!fd) return failed(errno, fmt::format("cannot open {}", folder));
  return fd;
}

Status Directory::rename(const std::string& from, const std::string& to) const {
  GCR_ASSIGN(const AsOwner as, AsOwner::take(owner_));
  GCR_ASSIGN(const UniqueFd from_folder, folder_of(from));
  GCR_ASSIGN(const UniqueFd to_folder, folder_of(to));
  const std::string old_leaf = leaf_of(from);
  const std::string leaf = leaf_of(to);
  if (::renameat2(from_folder.get(), old_leaf.c_str(), to_folder.get(), leaf.c_str(),
                  RENAME_NOREPLACE) == 0) {
    return {};
  }
  int error = errno;
  if (error == EINVAL || error == ENOSYS || error == EOPNOTSUPP) {
    error = rename_by_link(from_folder.get(), to_folder.get(), old_leaf, leaf);
  }
  if (error == EEXIST && is_one_file(from_folder.get(), to_folder.get(), old_leaf, leaf)) {
    // The link exists already: a process died between link and unlink.
    error = ::unlinkat(from_folder.get(), old_leaf.c_str(), 0) == 0 ? 0 : errno;
  }
  if (error == 0) return {};
  return failed(error, fmt::format("cannot rename {} to {}", from, to));
}

Status Directory::remove(const std::string& name) const {
  GCR_ASSIGN(const AsOwner as, AsOwner::take(owner_));
  const auto folder = folder_of(name);
  if (!folder && folder.error().code() == Code::kNotFound) return {};
  GCR_TRY(folder);
  if (::unlinkat(folder->get(), leaf_of(name).c_str(), 0) == 0 || errno == ENOENT) return {};
  return failed(errno, fmt::format("cannot remove {}", name));
}

bool Directory::remove_if_empty() const {
  const auto entries = list("");
  const auto packs = list("packs");
  const auto is_rest = [](const std::string& entry) {
    return entry == "packs" || entry == kLockFile;
  };
  if (!entries || !packs || !packs->empty() || !std::ranges::all_of(*entries, is_rest)) {
    return false;
  }
  const auto as = AsOwner::take(owner_);
  if (!as) return false;
  (void)::unlinkat(fd_.get(), "packs", AT_REMOVEDIR);
  (void)::unlinkat(fd_.get(), kLockFile, 0);
  return ::rmdir(path_.c_str()) == 0;
}

Status Directory::sync() const {
  GCR_ASSIGN(const AsOwner as, AsOwner::take(owner_));
  const UniqueFd packs(open_below(fd_.get(), "packs", O_RDONLY | O_DIRECTORY));
  if (!packs && errno != ENOENT) return failed(errno, "cannot open packs");
  const int packs_failed = packs ? sync_folder(packs.get()) : 0;
  if (packs_failed != 0) return failed(packs_failed, "cannot sync packs to disk");
  const int error = sync_folder(fd_.get());
  return error == 0 ? Status() : failed(error, "cannot sync the directory to disk");
}

Result<std::vector<std::string>> Directory::list(const std::string& directory) const {
  GCR_ASSIGN(const AsOwner as, AsOwner::take(owner_));
  UniqueFd fd(open_below(fd_.get(), directory.empty() ? "." : directory, O_RDONLY | O_DIRECTORY));
  if (!fd && errno == ENOENT) return std::vector<std::string>();
  if (!fd) return failed(errno, fmt::format("cannot list {}", directory));
  const std::unique_ptr<DIR, CloseDirectory> opened(::fdopendir(fd.get()));
  if (!opened) return failed(errno, fmt::format("cannot list {}", directory));
  (void)fd.release();
  std::vector<std::string> entries;
  errno = 0;
  while (const dirent* entry = ::readdir(opened.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") entries.emplace_back(name);
    if (entries.size() > kMaxEntries) {
      return Error(Code::kResourceExhausted,
                   fmt::format("{} has more than {} entries", path_.native(), kMaxEntries));
    }
    errno = 0;
  }
  if (errno != 0) return failed(errno, fmt::format("cannot list {}", directory));
  return entries;
}

Error Directory::failed(int errno_value, std::string_view doing) const {
  const std::string what = fmt::format("{}: {}", path_.native(), doing);
  switch (errno_value) {
    case ENOSPC:
    case EDQUOT: {
      struct statvfs facts {};
      const bool known = ::fstatvfs(fd_.get(), &facts) == 0;
      return Error(
          Code::kResourceExhausted,
          fmt::format("{}: {}; {} are free", what, std::generic_category().message(errno_value),
                      known ? format_bytes(facts.f_bavail * facts.f_frsize) : "?"));
    }
    case EEXIST:
      return Error(Code::kRefused, fmt::format("{}: it exists already", what));
    case ELOOP:
      return Error(Code::kRefused, fmt::format("{}: it is a link", what));
    case ENOENT:
      return Error(Code::kNotFound, fmt::format("{}: no such file", what));
    default:
      return Error::from_errno(errno_value, what);
  }
}

int write_all(int fd, std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t count = uninterrupted(
        [&] { return ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
    if (count < 0) return errno;
    if (count == 0) return EIO;  // a file system that writes nothing would cause an endless loop
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return 0;
}

Status read_all(int fd, std::span<std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t count = uninterrupted(
        [&] { return ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
    if (count < 0 && errno == ESTALE) {
      return Error(Code::kIo, "another host has removed the file meanwhile");
    }
    if (count < 0) return Error::from_errno(errno, "cannot read");
    if (count == 0) return Error(Code::kDataLoss, "the file ends too early");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return {};
}

int sync_file(int fd) {
  return uninterrupted([&] { return ::fsync(fd); }) == 0 ? 0 : errno;
}

}  // namespace gcr::store
