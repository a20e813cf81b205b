#include "migrate-agent/process/layer/apply.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "migrate-agent/process/layer/attributes.h"
#include "migrate-agent/process/layer/beneath.h"
#include "migrate-agent/process/layer/pack_reader.h"
#include "migrate-agent/process/layer/removal.h"
#include "src/base/little_endian.h"
#include "src/base/random.h"

namespace gcr::layer {
namespace {

constexpr mode_t kPermissions = 07777;

Error cannot(const char* what) { return Error::from_errno(errno, std::string("cannot ") + what); }

/// A new name in a directory, which is removed again if it is still there. Not copyable.
class TemporaryName {
 public:
  explicit TemporaryName(const UniqueFd& parent)
      : parent_(parent),
        name_(fmt::format(".gcr-{:016x}",
                          load_little_endian<std::uint64_t>(random_bytes<8>().data()))) {}
  ~TemporaryName() { ::unlinkat(parent_.get(), name_.c_str(), 0); }
  TemporaryName(const TemporaryName&) = delete;
  TemporaryName& operator=(const TemporaryName&) = delete;

  const char* get() const { return name_.c_str(); }

 private:
  const UniqueFd& parent_;
  const std::string name_;
};

Status set_time(const UniqueFd& held, const timespec& modified) {
  const timespec times[2] = {{0, UTIME_OMIT}, modified};
  if (::utimensat(held.get(), "", times, AT_EMPTY_PATH) == 0) return {};
  return cannot("set the time");
}

/// All but the time. Owner first: that clears setuid bits and capabilities.
Status set_facts(const UniqueFd& held, const PackEntry& entry) {
  if (::fchownat(held.get(), "", entry.uid, entry.gid, AT_EMPTY_PATH) != 0) {
    return cannot("set the owner");
  }
  if (S_ISLNK(entry.mode)) return {};
  if (::chmod(link_of(held).c_str(), entry.mode & kPermissions) != 0) {
    return cannot("set the permissions");
  }
  return write_attributes(held, entry.attributes);
}

Status write_at(const UniqueFd& file, std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return cannot("write the content");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return {};
}

class Applier {
 public:
  Applier(const Tree& tree, PackReader reader) : top_(tree.view), reader_(std::move(reader)) {}

  Result<Notes> run() {
    for (;;) {
      GCR_ASSIGN(const auto entry, reader_.next());
      if (!entry) break;
      const Status applied = apply(*entry);
      if (!applied) return applied.error().while_doing(shown_path(entry->path));
    }
    GCR_TRY(restore_times());
    return std::move(notes_);
  }

 private:
  using Kind = PackEntry::Kind;

  Status apply(const PackEntry& entry) {
    if (entry.kind == Kind::kRemoved) {
      GCR_TRY(remove(entry.path));
    } else if (entry.kind == Kind::kEmptied) {
      GCR_TRY(empty(entry.path));
    } else if (entry.path.empty()) {
      GCR_TRY(set_root(entry));
    } else {
      GCR_TRY(make(entry));
    }
    return reader_.read_content([](auto, auto) { return Status(); });  // of what was left out
  }

  /// The directory of an entry. Null if it is, or is in, a mount point, or if it is missing and
  /// may.
  Result<const UniqueFd*> open_parent(const std::string& path, bool may_be_missing) {
    const std::string directory = parent_of(path);
    if (parent_ && directory == parent_path_) return &parent_;
    parent_ = hold_directory(top_, directory);
    parent_path_ = directory;
    if (parent_) return &parent_;
    if (errno == EXDEV) {
      keep_mount(directory);
      return nullptr;
    }
    if (may_be_missing && (errno == ENOENT || errno == ENOTDIR)) return nullptr;
    if (is_gone(errno)) return Error(Code::kProtocol, "its directory is missing, or a link");
    return cannot("open its directory");
  }

  void keep_mount(const std::string& path) {
    if (kept_ && (path == *kept_ || is_below(path, *kept_))) return;
    kept_ = path;
    notes_.add(fmt::format("{} is a mount point here and stays", shown_path(path)));
  }

  /// To be called before a directory is changed that may not be in the pack.
  Status keep_time(const UniqueFd& directory, const std::string& path) {
    if (times_.contains(path)) return {};
    const auto status = look(directory, "");
    if (!status) return cannot("examine its directory");
    return add_time(path, {status->stx_mtime.tv_sec, status->stx_mtime.tv_nsec});
  }

  Status add_time(const std::string& path, const timespec& modified) {
    metadata_bytes_ += path.size();
    times_.insert_or_assign(path, modified);
    if (metadata_bytes_ <= kMaxMetadataBytes) return {};
    return Error(Code::kResourceExhausted, fmt::format("the names of directories have over {}",
                                                       format_bytes(kMaxMetadataBytes)));
  }

  Status remove(const std::string& path) {
    GCR_ASSIGN(const UniqueFd* const parent, open_parent(path, true));
    if (parent == nullptr) return {};
    const std::string name = name_of(path);
    const auto there = look(*parent, name);
    if (!there && errno == ENOENT) return {};
    if (!there) return cannot("examine it");
    if (is_mount_point(*there)) {
      keep_mount(path);
      return {};
    }
    GCR_TRY(keep_time(*parent, parent_of(path)));
    if (S_ISDIR(there->stx_mode)) {
      GCR_TRY(remove_directory(top_, path, notes_));
    } else if (::unlinkat(parent->get(), name.c_str(), 0) != 0) {
      return cannot("remove it");
    }
    return {};
  }

  Status empty(const std::string& path) {
    parent_.reset();
    const UniqueFd directory = hold_directory(top_, path);
    if (!directory && errno == EXDEV) {
      keep_mount(path);
      return {};
    }
    if (!directory) return cannot("open the directory");
    GCR_TRY(keep_time(directory, path));
    GCR_TRY(empty_directory(top_, path, notes_));
    return {};
  }

  Status set_root(const PackEntry& entry) {
    if (!S_ISDIR(entry.mode)) return Error(Code::kProtocol, "it is to be a file");
    GCR_TRY(set_facts(top_, entry));
    return add_time("", entry.modified);
  }

  Status make(const PackEntry& entry) {
    GCR_ASSIGN(const UniqueFd* const parent, open_parent(entry.path, false));
    if (parent == nullptr) return {};
    const auto there = look(*parent, name_of(entry.path));
    if (!there && errno != ENOENT) return cannot("examine what is there");
    if (there && is_mount_point(*there)) {
      keep_mount(entry.path);
      return {};
    }
    const mode_t type = there ? there->stx_mode & S_IFMT : 0;
    if (entry.kind == Kind::kFile && S_ISDIR(entry.mode)) {
      return make_directory(*parent, entry, type);
    }
    return replace(*parent, entry, type);
  }

  Status make_directory(const UniqueFd& parent, const PackEntry& entry, mode_t there) {
    const std::string name = name_of(entry.path);
    if (there != S_IFDIR) {
      GCR_TRY(keep_time(parent, parent_of(entry.path)));
      if (there != 0 && ::unlinkat(parent.get(), name.c_str(), 0) != 0) {
        return cannot("remove what is there");
      }
      if (::mkdirat(parent.get(), name.c_str(), 0700) != 0) return cannot("make the directory");
    }
    const UniqueFd held = hold_directory(parent, name);
    if (!held) return cannot("open the directory");
    GCR_TRY(set_facts(held, entry));
    return add_time(entry.path, entry.modified);
  }

  Status replace(const UniqueFd& parent, const PackEntry& entry, mode_t there) {
    GCR_TRY(keep_time(parent, parent_of(entry.path)));
    const TemporaryName made(parent);
    if (entry.kind == Kind::kLink) {
      GCR_TRY(link(parent, made.get(), entry.target));
    } else if (S_ISREG(entry.mode)) {
      GCR_TRY(make_regular(parent, made.get(), entry));
    } else {
      GCR_TRY(make_special(parent, made.get(), entry));
    }
    if (S_ISDIR(there)) {
      GCR_ASSIGN(const bool is_gone, remove_directory(top_, entry.path, notes_));
      if (!is_gone) return Error(Code::kRefused, "a mount point is in the directory there");
    }
    // Of two names of one file this removes neither; TemporaryName does.
    if (::renameat(parent.get(), made.get(), parent.get(), name_of(entry.path).c_str()) == 0) {
      return {};
    }
    return cannot("give it its name");
  }

  Status link(const UniqueFd& parent, const char* name, const std::string& target) {
    const UniqueFd directory = hold_directory(top_, parent_of(target));
    const auto first = directory ? look(directory, name_of(target)) : std::nullopt;
    if (first && !S_ISDIR(first->stx_mode) && !is_mount_point(*first)) {
      if (::linkat(directory.get(), name_of(target).c_str(), parent.get(), name, 0) == 0) return {};
      return cannot("link it");
    }
    return Error(Code::kProtocol, fmt::format("its other name, {}, is none of a file in the tree",
                                              shown_path(target)));
  }

  Status make_regular(const UniqueFd& parent, const char* name, const PackEntry& entry) {
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    const UniqueFd file(::openat(parent.get(), name, flags, 0600));
    if (!file) return cannot("make the file");
    GCR_TRY(reader_.read_content(
        [&file](auto offset, auto bytes) { return write_at(file, offset, bytes); }));
    if (::ftruncate(file.get(), static_cast<off_t>(entry.size)) != 0) {
      return cannot("set the length");
    }
    GCR_TRY(set_facts(file, entry));
    return set_time(file, entry.modified);
  }

  static Status make_special(const UniqueFd& parent, const char* name, const PackEntry& entry) {
    const bool is_made =
        S_ISLNK(entry.mode)
            ? ::symlinkat(entry.target.c_str(), parent.get(), name) == 0
            : ::mknodat(parent.get(), name, (entry.mode & S_IFMT) | 0600, entry.device) == 0;
    if (!is_made) return cannot("make it");
    const UniqueFd held = hold_beneath(parent, name);
    if (!held) return cannot("open it");
    GCR_TRY(set_facts(held, entry));
    return set_time(held, entry.modified);
  }

  Status restore_times() {
    for (const auto& [path, modified] : times_) {
      const UniqueFd held = hold_directory(top_, path);
      if (!held && is_gone(errno)) continue;  // removed or replaced after it was changed
      const Status set = held ? set_time(held, modified) : cannot("open it");
      if (!set) return set.error().while_doing(shown_path(path));
    }
    return {};
  }

  const UniqueFd& top_;
  PackReader reader_;
  UniqueFd parent_;  ///< the last one that was opened
  std::string parent_path_;
  std::optional<std::string> kept_;                   ///< the last mount point that was noted
  std::map<std::string, timespec, PathOrder> times_;  ///< of directories, set in the end
  std::uint64_t metadata_bytes_ = 0;
  Notes notes_;
};

}  // namespace

Result<Notes> apply_pack(const Tree& tree, int fd, const Limits& limits) {
  auto reader = PackReader::open(fd, limits);
  if (!reader) return reader.error();
  auto applied = Applier(tree, std::move(*reader)).run();
  if (applied) return applied;
  return applied.error().while_doing("cannot make the container's own files in " +
                                     shown(tree.point));
}

}  // namespace gcr::layer
