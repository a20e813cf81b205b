#include "migrate-agent/process/memory_files/incoming.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "migrate-agent/commit/journal/journal.h"
#include "migrate-agent/linux/procfs/directory.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/access.h"
#include "migrate-agent/process/inspect/named_files.h"
#include "migrate-agent/process/memory_files/release.h"
#include "src/base/units.h"

namespace gcr::memory_files {
namespace {

namespace fs = std::filesystem;
using procfs::FileId;

constexpr mode_t kPermissions = 07777;

/// An absolute path without anything that could lead elsewhere.
bool is_plain(const fs::path& name) {
  return name.is_absolute() && name.native().size() <= process::kMaxNameBytes &&
         name.native().find('\0') == std::string::npos && name.has_filename() &&
         name.lexically_normal().native() == name.native();
}

Status check(const proto::MemoryFile& file) {
  const auto are_plain = [](const auto& names) { return std::ranges::all_of(names, is_plain); };
  std::size_t attributes = 0;
  bool allowed = true;
  for (const proto::FileAttribute& one : file.attributes()) {
    attributes += one.name().size() + one.value().size();
    allowed &= one.name().starts_with("user.") || one.name() == "system.posix_acl_access";
  }
  if (!file.names().empty() && file.names_size() + file.opened_as_size() <= kMaxNames &&
      are_plain(file.names()) && are_plain(file.opened_as()) && S_ISREG(file.mode()) &&
      file.size_bytes() <= kMaxFileBytes && allowed && attributes <= kMaxAttributeBytes) {
    return {};
  }
  return Error(Code::kProtocol, "the source sent an invalid description of a file in memory");
}

/// Directories and what they have, each looked at once.
class Places {
 public:
  explicit Places(findings::Findings& findings) : findings_(findings) {}

  /// True if all of its names are the same file here, the source's. A finding if they are neither
  /// that nor free.
  bool is_shared(const proto::MemoryFile& file, bool same_kernel) {
    const FileId theirs{file.device(), file.inode()};
    bool fits = true;
    int found = 0;
    for (const std::string& name : file.names()) {
      const FileId here = id_of(name, fits);
      found += same_kernel && here == theirs ? 1 : 0;
      if (here == FileId() || (same_kernel && here == theirs)) continue;
      fits = refuse("{} is here already, and moves with the process from the source", name);
    }
    const bool shared = found == file.names_size();
    if (found != 0 && !shared) fits = refuse("{} has further names at the source", file.names(0));
    for (const std::string& name : file.opened_as()) {
      if (id_of(name, fits) != FileId()) fits = refuse("{} is here already", name);
    }
    if (fits && !shared) needed_[device_of(file.names(0))] += file.held_bytes();
    return shared;
  }

  /// A finding for each file system that lacks the space for all files seen so far.
  void check_space() {
    for (const auto& [path, directory] : directories_) {
      struct statfs system {};
      const auto needed = needed_.find(device_of(directory));
      if (!directory || needed == needed_.end() || ::fstatfs(directory.get(), &system) != 0) {
        continue;
      }
      // A tmpfs without a limit says 0.
      const auto free = static_cast<std::uint64_t>(system.f_bavail) * system.f_bsize;
      if (system.f_blocks == 0 || needed->second <= free) continue;
      findings_.add(findings::kMemoryFile,
                    fmt::format("the files in memory of the process have {}; {} are "
                                "free in {}",
                                format_bytes(needed->second), format_bytes(free), path));
      needed_.erase(needed);
    }
  }

 private:
  bool refuse(const char* format, const std::string& name) {
    findings_.add(findings::kMemoryFile, fmt::format(fmt::runtime(format), name));
    return false;
  }

  FileId id_of(const std::string& name, bool& fits) {
    const UniqueFd& directory = open(fs::path(name).parent_path());
    if (!directory) {
      fits = false;
      return {};
    }
    return procfs::file_at(directory, fs::path(name).filename());
  }

  const UniqueFd& open(const std::string& path) {
    const auto known = directories_.find(path);
    if (known != directories_.end()) return known->second;
    UniqueFd& directory = directories_[path] = procfs::open_directory(path);
    struct statfs system {};
    if (!directory) {
      refuse("the directory {} of a file in memory is not here", path);
    } else if (::fstatfs(directory.get(), &system) != 0 || system.f_type != TMPFS_MAGIC) {
      refuse("the directory {} of a file in memory is not on a tmpfs here", path);
      directory.reset();
    }
    return directory;
  }

  static dev_t device_of(const UniqueFd& directory) {
    struct stat status {};
    return directory && ::fstat(directory.get(), &status) == 0 ? status.st_dev : 0;
  }
  dev_t device_of(const std::string& name) {
    return device_of(directories_[fs::path(name).parent_path()]);
  }

  findings::Findings& findings_;
  std::map<std::string, UniqueFd> directories_;
  std::map<dev_t, std::uint64_t> needed_;
};

/// A member that owns it; null if there is none.
const proto::Credentials* owner_of(const proto::MemoryFile& file,
                                   const std::vector<proto::Credentials>& members) {
  const auto found = std::ranges::find_if(
      members, [&](const auto& who) { return process::is_owner(who, file.uid()); });
  return found == members.end() ? nullptr : &*found;
}

Error no_owner(const proto::MemoryFile& file) {
  return Error(Code::kRefused,
               fmt::format("{} belongs to user {}, whom no process of the job can act for",
                           file.names(0), file.uid()));
}

/// All data; what it has no data for stays a hole.
Status copy(int from, int to, std::uint64_t size) {
  if (::ftruncate(to, static_cast<off_t>(size)) != 0) {
    return Error::from_errno(errno, "cannot make it as long as it was");
  }
  for (off_t at = 0; (at = ::lseek(from, at, SEEK_DATA)) >= 0;) {
    const off_t end = ::lseek(from, at, SEEK_HOLE);
    if (end < 0 || ::lseek(to, at, SEEK_SET) < 0) break;
    while (at < end) {
      const ssize_t sent = ::sendfile(to, from, &at, static_cast<std::size_t>(end - at));
      if (sent <= 0) return Error::from_errno(sent < 0 ? errno : EIO, "cannot fill it");
    }
  }
  if (errno == ENXIO) return {};  // no data behind
  return Error::from_errno(errno, "cannot read its image");
}

/// With the rights of the calling thread.
UniqueFd make_unnamed(const std::string& directory) {
  const UniqueFd opened = procfs::open_directory(directory);
  if (!opened) return {};
  return UniqueFd(::openat(opened.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
}

/// False if the kernel refuses.
bool set_owner_and_mode(int file, const proto::MemoryFile& fact) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return false;
  if ((status.st_uid != fact.uid() || status.st_gid != fact.gid()) &&
      ::fchown(file, fact.uid(), fact.gid()) != 0) {
    return false;
  }
  if (::fchmod(file, fact.mode() & kPermissions) != 0) return false;
  for (const proto::FileAttribute& one : fact.attributes()) {
    if (::fsetxattr(file, one.name().c_str(), one.value().data(), one.value().size(), 0) != 0) {
      return false;
    }
  }
  return ::fstat(file, &status) == 0 && status.st_mode == fact.mode();
}

/// False if the kernel refuses.
bool give_name(int file, const std::string& name) {
  const UniqueFd directory = procfs::open_directory(fs::path(name).parent_path());
  const std::string link = fmt::format("self/fd/{}", file);
  return directory && ::linkat(procfs::own_proc(), link.c_str(), directory.get(),
                               fs::path(name).filename().c_str(), AT_SYMLINK_FOLLOW) == 0;
}

/// The file that both hosts have under this name.
UniqueFd hold_shared(const proto::MemoryFile& fact) {
  const fs::path name = fact.names(0);
  const UniqueFd directory = procfs::open_directory(name.parent_path());
  if (!directory) return {};
  UniqueFd file(
      ::openat(directory.get(), name.filename().c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!file || procfs::id_of(file) == FileId{fact.device(), fact.inode()}) return file;
  errno = ESTALE;
  return {};
}

}  // namespace

Result<std::vector<IncomingFile>> plan(const FileFacts& files, const std::string& boot_id,
                                       findings::Findings& findings) {
  if (files.size() > kMaxFiles) {
    return Error(Code::kProtocol,
                 fmt::format("{} files in memory are more than {}", files.size(), kMaxFiles));
  }
  const auto our_boot_id = journal::boot_id();
  const bool same_kernel = our_boot_id && *our_boot_id == boot_id;
  std::vector<IncomingFile> incoming;
  Places places(findings);
  for (const proto::MemoryFile& file : files) {
    GCR_TRY(check(file));
    incoming.push_back({file, places.is_shared(file, same_kernel)});
  }
  places.check_space();
  return incoming;
}

std::set<std::string> coming_names(const std::vector<IncomingFile>& files) {
  std::set<std::string> names;
  for (const IncomingFile& file : files) {
    if (!file.shared) names.insert(file.fact.names().begin(), file.fact.names().end());
  }
  return names;
}

void check_owners(const std::vector<IncomingFile>& files,
                  const std::vector<proto::Credentials>& members, findings::Findings& findings) {
  for (const IncomingFile& file : files) {
    if (file.shared && file.fact.opened_as().empty()) continue;
    const proto::Credentials* owner = owner_of(file.fact, members);
    if (owner == nullptr) {
      findings.add(findings::kMemoryFile, no_owner(file.fact).message());
      continue;
    }
    const std::string path = fs::path(file.fact.names(0)).parent_path();
    int failed = 0;
    const Status tried = process::act_as(*owner, [&] {
      const UniqueFd directory = procfs::open_directory(path);
      const bool may = directory && ::faccessat(directory.get(), ".", W_OK | X_OK, AT_EACCESS) == 0;
      failed = may ? 0 : errno;
    });
    if (tried && failed == 0) continue;
    findings.add(findings::kMemoryFile,
                 tried ? fmt::format("user {} cannot make {} here: {}", file.fact.uid(),
                                     file.fact.names(0), ::strerror(failed))
                       : tried.error().message());
  }
}

std::string image_name(std::size_t place) { return fmt::format("memory-{}.img", place); }

Status Incoming::add(const IncomingFile& file, int images, const std::string& image,
                     const std::vector<proto::Credentials>& members) {
  const proto::Credentials* owner = owner_of(file.fact, members);
  if (owner == nullptr) return no_owner(file.fact);
  Made made{.file = {}, .owner = *owner, .held = {}};
  int failed = 0;
  GCR_TRY(process::act_as(*owner, [&] {
    made.file = file.shared ? hold_shared(file.fact)
                            : make_unnamed(fs::path(file.fact.names(0)).parent_path());
    failed = made.file ? 0 : errno;
  }));
  if (failed != 0) return Error::from_errno(failed, "cannot make it");
  if (!file.shared) {
    const UniqueFd content(::openat(images, image.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!content) return Error::from_errno(errno, "its content has not come");
    GCR_TRY(copy(content.get(), made.file.get(), file.fact.size_bytes()));
    ::unlinkat(images, image.c_str(), 0);  // its memory is needed no longer
    GCR_TRY(process::act_as(*owner, [&] {
      errno = EPERM;
      failed = set_owner_and_mode(made.file.get(), file.fact) ? 0 : errno;
    }));
    if (failed != 0) return Error::from_errno(failed, "cannot give it its owner and permissions");
    for (const std::string& name : file.fact.names()) made.held.add_made(name);
  }
  const FileId id = procfs::id_of(made.file);
  if (id == FileId()) return Error::from_errno(errno, "cannot look at it");
  made.held.set_device(id.first);
  made.held.set_inode(id.second);
  *made.held.mutable_owner() = made.owner;
  journal::HeldFile temporary = made.held;
  *temporary.mutable_made() = file.fact.opened_as();
  made.held.mutable_made()->MergeFrom(file.fact.opened_as());
  *held_.add_files() = made.held;
  *temporary_.add_files() = std::move(temporary);
  made_.push_back(std::move(made));
  return {};
}

Result<Incoming> Incoming::make(std::vector<IncomingFile> files, const UniqueFd& images,
                                const std::vector<proto::Credentials>& members) {
  Incoming incoming;
  for (std::size_t place = 0; place < files.size(); ++place) {
    const IncomingFile& file = files[place];
    if (file.shared && file.fact.opened_as().empty()) continue;
    const Status added = incoming.add(file, images.get(), image_name(place), members);
    if (!added) return added.error().while_doing(file.fact.names(0));
  }
  return incoming;
}

Status Incoming::give_names() const {
  for (const Made& made : made_) {
    for (const std::string& name : made.held.made()) {
      int failed = 0;
      GCR_TRY(process::act_as(made.owner,
                              [&] { failed = give_name(made.file.get(), name) ? 0 : errno; }));
      if (failed == 0) continue;
      return Error(Code::kRefused,
                   fmt::format("cannot make the file in memory {}: {}", name, ::strerror(failed)));
    }
  }
  return {};
}

std::set<std::string> Incoming::names() const {
  std::set<std::string> names;
  for (const journal::HeldFile& file : held_.files()) {
    names.insert(file.made().begin(), file.made().end());
  }
  return names;
}

Status Incoming::drop_temporary_names() const { return remove_names(temporary_, Which::kMade); }

}  // namespace gcr::memory_files
