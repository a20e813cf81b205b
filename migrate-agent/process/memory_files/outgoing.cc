#include "migrate-agent/process/memory_files/outgoing.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/access.h"
#include "migrate-agent/process/inspect/credentials.h"
#include "migrate-agent/process/inspect/descriptors.h"
#include "migrate-agent/process/inspect/files.h"
#include "migrate-agent/process/inspect/together.h"
#include "src/base/units.h"

namespace gcr::memory_files {
namespace {

namespace fs = std::filesystem;
using procfs::FileId;

struct Holder {
  pid_t pid;
  std::string link;
};

/// What members have of one file.
struct Use {
  std::vector<Holder> holders;  ///< first those that share memory by it
  std::set<std::string> paths;
  std::set<std::string> gone_names;
  bool written = false;
  bool shared = false;

  const std::string& name() const { return *paths.begin(); }
};

using Uses = std::map<FileId, Use>;

Uses uses_of(std::span<const Member> members) {
  Uses uses;
  for (const Member& member : members) {
    for (const process::NamedFile& file : member.named) {
      if (file.link.empty()) continue;
      Use& use = uses[file.id];
      use.holders.insert(file.shared ? use.holders.begin() : use.holders.end(),
                         Holder{member.pid, file.link});
      use.paths.insert(file.fact.path());
      use.gone_names.insert(file.gone_names.begin(), file.gone_names.end());
      use.written |= (file.fact.access() & W_OK) != 0;
      use.shared |= file.shared;
    }
  }
  // Those that no member writes to are compared like any other file.
  std::erase_if(
      uses, [](const auto& use) { return !use.second.written && use.second.gone_names.empty(); });
  return uses;
}

std::string temporary(const std::string& gone_name) {
  return gone_name + std::string(process::kDeleted);
}

/// The names of the file in the directories where it was opened, without those that give_names()
/// makes, which `made` counts.
std::set<std::string> names_of(const FileId& id, const Use& use, pid_t pid, std::uint64_t& made) {
  std::set<std::string> directories;
  for (const auto* paths : {&use.paths, &use.gone_names}) {
    for (const std::string& path : *paths) directories.insert(fs::path(path).parent_path());
  }
  std::set<std::string> names;
  made = 0;
  for (const std::string& path : directories) {
    const UniqueFd directory = procfs::open_directory(path, pid);
    if (!directory) continue;
    const auto files = procfs::regular_files(directory);
    const auto [first, last] = files.equal_range(id.second);
    for (auto at = first; at != last; ++at) {
      const std::string name = fs::path(path) / at->second;
      if (procfs::file_at(directory, at->second) != id) continue;
      const auto is_made = [&name](const auto& gone) { return temporary(gone) == name; };
      if (std::ranges::any_of(use.gone_names, is_made)) {
        ++made;
      } else {
        names.insert(name);
      }
    }
  }
  return names;
}

/// Who of the members owns what, each asked once.
class Owners {
 public:
  /// The rights of a thread of `pid` that owns files of `user`; null if there is none.
  const proto::Credentials* find(pid_t pid, uid_t user) {
    const auto [known, is_new] = known_.try_emplace({pid, user});
    if (is_new) {
      (void)process::find_rights(pid, [&, at = known](const proto::Credentials& who) {
        if (!process::is_owner(who, user)) return false;
        at->second = who;
        return true;
      });
    }
    return known->second ? &*known->second : nullptr;
  }

 private:
  std::map<std::pair<pid_t, uid_t>, std::optional<proto::Credentials>> known_;
};

/// Those that its owner may set. False if there are too many.
bool read_attributes(const std::string& link, proto::MemoryFile& fact) {
  std::string names(kMaxAttributeBytes, '\0');
  const ssize_t length = ::listxattr(link.c_str(), names.data(), names.size());
  if (length < 0) return errno == ENOTSUP;
  std::size_t total = 0;
  for (std::size_t at = 0; at < static_cast<std::size_t>(length);) {
    const std::string name = names.c_str() + at;
    at += name.size() + 1;
    if (!name.starts_with("user.") && name != "system.posix_acl_access") continue;
    std::string value(kMaxAttributeBytes, '\0');
    const ssize_t size = ::getxattr(link.c_str(), name.c_str(), value.data(), value.size());
    if (size < 0) return false;
    value.resize(static_cast<std::size_t>(size));
    total += name.size() + value.size();
    proto::FileAttribute& attribute = *fact.add_attributes();
    attribute.set_name(name);
    attribute.set_value(std::move(value));
  }
  return total <= kMaxAttributeBytes;
}

/// Reads its attributes with the rights of its owner. Why that cannot be done, as the end of a
/// sentence; empty if it was.
std::string read_as_owner(const UniqueFd& held, OutgoingFile& file) {
  std::string why;
  const Status done = process::act_as(file.owner, [&] {
    const std::string link = fmt::format("/proc/self/fd/{}", held.get());
    if (process::try_held(held, R_OK) != 0) {
      why = "its owner may not read";
    } else if (!read_attributes(link, file.fact)) {
      why = "has too many extended attributes";
    }
  });
  return done ? why : "cannot be read: " + done.error().message();
}

/// The file, by the link of a member that still has it, and what it is; none if no member has.
UniqueFd hold_any(const FileId& id, const Use& use, struct stat& status) {
  for (const Holder& holder : use.holders) {
    UniqueFd held = procfs::hold(holder.link);
    if (held && ::fstat(held.get(), &status) == 0 && FileId{status.st_dev, status.st_ino} == id) {
      return held;
    }
  }
  return {};
}

/// Why the file cannot be taken along, as the end of a sentence; empty if it can.
std::string describe(const FileId& id, const Use& use, Owners& owners, OutgoingFile& file) {
  struct stat status {};
  const UniqueFd held = hold_any(id, use, status);
  if (!held) return "was closed while it was examined";
  for (const Holder& holder : use.holders) {
    const proto::Credentials* const owner = owners.find(holder.pid, status.st_uid);
    if (owner == nullptr) continue;
    file.pid = holder.pid;
    file.link = holder.link;
    file.owner = *owner;
    break;
  }
  if (file.pid == 0) return fmt::format("belongs to user {}, not to the process", status.st_uid);
  proto::MemoryFile& fact = file.fact;
  std::uint64_t made = 0;
  const auto names = names_of(id, use, file.pid, made);
  if (names.empty() || names.size() + made != status.st_nlink) {
    return fmt::format("has {} names, of which {} are known", status.st_nlink - made, names.size());
  }
  if (names.size() + use.gone_names.size() > static_cast<std::size_t>(kMaxNames)) {
    return fmt::format("has {} names, {} are allowed", names.size() + use.gone_names.size(),
                       kMaxNames);
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > kMaxFileBytes) {
    return fmt::format("has {}, {} are allowed", format_bytes(size), format_bytes(kMaxFileBytes));
  }
  const std::string unread = read_as_owner(held, file);
  if (!unread.empty()) return unread;
  for (const std::string& name : names) fact.add_names(name);
  for (const std::string& name : use.gone_names) fact.add_opened_as(name);
  fact.set_size_bytes(size);
  fact.set_held_bytes(static_cast<std::uint64_t>(status.st_blocks) * 512);
  fact.set_mode(status.st_mode);
  fact.set_uid(status.st_uid);
  fact.set_gid(status.st_gid);
  fact.set_device(id.first);
  fact.set_inode(id.second);
  return "";
}

/// Files that members share memory by, or that CRIU could not find, block.
void refuse(const Use& use, const std::string& why, Outgoing& found) {
  if (!use.shared && use.gone_names.empty()) return;
  found.findings.add(
      findings::kSharedMemory,
      fmt::format("process {} has {} in memory, which {}",
                  process::describe_process(use.holders.front().pid), use.name(), why));
}

FileId told_id(const proto::MemoryFile& fact) { return {fact.device(), fact.inode()}; }

/// The file, as long as the member has it; none, with errno set, if not.
UniqueFd hold(const OutgoingFile& file) {
  UniqueFd held = procfs::hold(file.link);
  if (!held || procfs::id_of(held) == told_id(file.fact)) return held;
  errno = ESTALE;
  return {};
}

/// With the rights of the calling thread. True if the file has the name afterwards.
bool link_below(const UniqueFd& root, const std::string& name, const UniqueFd& held,
                const FileId& id) {
  const UniqueFd directory = procfs::open_directory(fs::path(name).parent_path(), root);
  if (!directory) return false;
  const std::string leaf = fs::path(name).filename();
  const std::string link = fmt::format("/proc/self/fd/{}", held.get());
  return ::linkat(AT_FDCWD, link.c_str(), directory.get(), leaf.c_str(), AT_SYMLINK_FOLLOW) == 0 ||
         (errno == EEXIST && procfs::file_at(directory, leaf) == id);
}

/// Success if the file has the name afterwards.
Status give_name(const OutgoingFile& file, const std::string& name) {
  const UniqueFd root = procfs::hold_root(file.pid);
  const UniqueFd held = root ? hold(file) : UniqueFd();
  int failed = errno;
  if (held) {
    GCR_TRY(process::act_as(file.owner, [&] {
      failed = link_below(root, name, held, told_id(file.fact)) ? 0 : errno;
    }));
    if (failed == 0) return {};
  }
  return Error(Code::kUnavailable, fmt::format("cannot name a file in memory {} for the dump: {}",
                                               name, ::strerror(failed)));
}

}  // namespace

Outgoing find(std::span<const Member> members) {
  Outgoing found;
  const Uses uses = uses_of(members);
  std::set<pid_t> pids;
  std::set<FileId> ids;
  for (const Member& member : members) pids.insert(member.pid);
  for (const auto& [id, use] : uses) ids.insert(id);
  const auto others = process::outsiders(ids, pids);
  Owners owners;
  for (const auto& [id, use] : uses) {
    const auto other = others.find(id);
    if (other != others.end()) {
      const std::string who = process::describe_process(other->second);
      for (const std::string& path : use.paths) found.shared_with[path] = who;
      refuse(use, fmt::format("process {} has too", who), found);
      continue;
    }
    OutgoingFile file;
    const std::string why = describe(id, use, owners, file);
    if (!why.empty()) {
      refuse(use, why, found);
    } else {
      found.files.push_back(std::move(file));
    }
  }
  if (found.files.size() > kMaxFiles) {
    found.findings.add(findings::kMemoryFile,
                       fmt::format("the job has {} files in memory, {} can be taken along",
                                   found.files.size(), kMaxFiles));
  }
  return found;
}

Result<UniqueFd> open(const OutgoingFile& file) {
  const UniqueFd held = hold(file);
  UniqueFd opened;
  if (held) {
    GCR_TRY(process::act_as(file.owner, [&] { opened = procfs::open_regular(held); }));
  }
  if (opened) return opened;
  return Error(Code::kNotFound,
               fmt::format("{}, a file in memory, cannot be read", file.fact.names(0)));
}

journal::HeldFiles wanted_names(const Outgoing& outgoing, Renamed& renamed) {
  journal::HeldFiles wanted;
  for (const OutgoingFile& file : outgoing.files) {
    if (file.fact.opened_as().empty()) continue;
    journal::HeldFile& held = *wanted.add_files();
    held.set_device(file.fact.device());
    held.set_inode(file.fact.inode());
    *held.mutable_owner() = file.owner;
    for (const std::string& name : file.fact.opened_as()) {
      held.add_made(temporary(name));
      renamed.emplace(temporary(name), name);
    }
  }
  return wanted;
}

Status give_names(const Outgoing& outgoing) {
  for (const OutgoingFile& file : outgoing.files) {
    for (const std::string& name : file.fact.opened_as()) {
      GCR_TRY(give_name(file, temporary(name)));
    }
  }
  return {};
}

}  // namespace gcr::memory_files
