#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "migrate-agent/process/layer/attributes.h"
#include "migrate-agent/process/layer/beneath.h"
#include "migrate-agent/process/layer/snapshot.h"

namespace gcr::layer {
namespace {

constexpr std::uint64_t kBlockBytes = 512;  // of stat(2)

Time time_of(const statx_timestamp& time) { return {time.tv_sec, time.tv_nsec}; }

/// The clock from which file systems take times.
Time now() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &time);
  return {time.tv_sec, static_cast<std::uint32_t>(time.tv_nsec)};
}

/// Whether a change from `time` on would show. Some file systems only keep seconds.
bool is_before(const Time& changed, const Time& time) {
  return changed.nanoseconds == 0 ? changed.seconds < time.seconds : changed < time;
}

Facts facts_of(const struct statx& status) {
  Facts facts;
  facts.mode = status.stx_mode;
  facts.uid = status.stx_uid;
  facts.gid = status.stx_gid;
  facts.device = makedev(status.stx_rdev_major, status.stx_rdev_minor);
  facts.modified = time_of(status.stx_mtime);
  facts.changed = time_of(status.stx_ctime);
  facts.born = time_of(status.stx_btime);
  facts.id = {makedev(status.stx_dev_major, status.stx_dev_minor), status.stx_ino};
  if (!S_ISDIR(status.stx_mode)) {
    facts.size = status.stx_size;
    facts.links = status.stx_nlink;
  }
  return facts;
}

class Scan {
 public:
  Scan(const Tree& tree, const Limits& limits, const KnownFiles& known)
      : tree_(tree),
        source_(tree.is_overlay() ? tree.upper : tree.view),
        limits_(limits),
        known_(known) {}

  Result<Snapshot> run() {
    GCR_TRY(add(source_, "", "", {}));
    // Directories are read after those above them; the list grows meanwhile.
    for (std::size_t at = 0; at < directories_.size(); ++at) {
      const Directory directory = std::exchange(directories_[at], {});
      GCR_TRY(read(directory));
    }
    GCR_TRY(check_names());
    return std::move(found_);
  }

 private:
  struct Directory {
    std::string path;
    bool is_renamed = false;     ///< something of the image is in it that has another name there
    bool is_from_image = false;  ///< it is in no upper directory
  };

  Status read(const Directory& directory) {
    std::set<std::string> own;
    if (!directory.is_from_image) {
      GCR_ASSIGN(own, names(source_, directory.path));
      GCR_TRY(add_all(source_, own, directory));
    }
    if (!directory.is_renamed) return {};
    GCR_ASSIGN(auto seen, names(tree_.view, directory.path));
    std::erase_if(seen, [&](const std::string& name) { return own.contains(name); });
    Directory of_image = directory;
    of_image.is_from_image = true;
    return add_all(tree_.view, seen, of_image);
  }

  /// Empty if the directory is gone.
  Result<std::set<std::string>> names(const UniqueFd& top, const std::string& path) const {
    auto names = names_in(top, path, limits_.max_entries);
    if (names) return std::move(*names);
    if (is_gone(errno) || errno == EXDEV) return std::set<std::string>();
    if (errno == E2BIG) return too_many();
    return Error::from_errno(errno, "cannot read " + shown_path(path));
  }

  Status add_all(const UniqueFd& top, const std::set<std::string>& names,
                 const Directory& directory) {
    const UniqueFd parent = hold_beneath(top, directory.path);
    if (!parent && !is_gone(errno) && errno != EXDEV) {
      return Error::from_errno(errno, "cannot open " + shown_path(directory.path));
    }
    for (const std::string& name : names) {
      if (parent) GCR_TRY(add(parent, name, join(directory.path, name), directory));
    }
    return {};
  }

  Status add(const UniqueFd& parent, const std::string& name, const std::string& path,
             const Directory& directory) {
    const UniqueFd held = hold_beneath(parent, name);
    const auto status = held ? look(held, "") : std::nullopt;
    // A mount point is the engine's.
    if (!status && (is_gone(errno) || errno == EXDEV)) return {};
    if (!status) return Error::from_errno(errno, "cannot open " + shown_path(path));
    Entry entry;
    entry.facts = facts_of(*status);
    entry.is_from_image = directory.is_from_image;
    entry.is_settled = is_before(entry.facts.changed, start_);
    const auto prefix = directory.is_from_image ? std::string_view() : tree_.overlay_prefix;
    auto attributes = read_attributes(held, prefix);
    if (!attributes) return attributes.error().while_doing(shown_path(path));
    interpret(*attributes, prefix, entry);
    if (!attributes->left_out.empty()) {
      found_.notes.add(fmt::format("the attribute {} of {} is not carried",
                                   shown(attributes->left_out), shown_path(path)));
    }
    if (!entry.is_whiteout) GCR_TRY(check(path, name, entry));
    if (S_ISDIR(entry.facts.mode)) descend(path, entry, directory);
    // The runtime may have copied files of the image into a tmpfs.
    if (path.empty() && !tree_.is_overlay()) entry.is_opaque = true;
    // Overlayfs does not keep the number of such a directory.
    if (S_ISDIR(entry.facts.mode) && entry.is_from_image) entry.facts.id = {};
    if (attributes->overlay.contains("nlink")) indexed_.emplace(entry.facts.id, path);
    GCR_TRY(count_metadata(path, entry));
    GCR_TRY(count_content(path, entry, *status, attributes->overlay.contains("metacopy")));
    found_.entries.emplace(path, std::move(entry));
    return {};
  }

  static void interpret(FoundAttributes& attributes, std::string_view prefix, Entry& entry) {
    Facts& facts = entry.facts;
    facts.attributes = std::move(attributes.carried);
    const bool is_marked = attributes.overlay.contains("whiteout");
    entry.is_whiteout = !prefix.empty() && ((S_ISCHR(facts.mode) && facts.device == 0) ||
                                            (S_ISREG(facts.mode) && facts.size == 0 && is_marked));
    if (!S_ISDIR(facts.mode)) return;
    // The value "x" means that it may have marked whiteouts, and merges as others do.
    entry.is_opaque = attributes.overlay["opaque"] == "y";
    entry.redirect = attributes.overlay["redirect"];
  }

  Status check(const std::string& path, const std::string& name, const Entry& entry) const {
    if (name.starts_with(kWhiteoutPrefix)) {
      return Error(Code::kUnsupported,
                   fmt::format("{} cannot be carried: names that begin with {} mean removed files",
                               shown_path(path), kWhiteoutPrefix));
    }
    if (path.size() > kMaxPathBytes) {
      return Error(Code::kUnsupported, fmt::format("{} cannot be carried: its path has {} bytes",
                                                   shown_path(path), path.size()));
    }
    const Facts& facts = entry.facts;
    if (S_ISREG(facts.mode) && facts.size > kMaxFileBytes) {
      return Error(Code::kUnsupported, fmt::format("{} cannot be carried: it is {} long",
                                                   shown_path(path), format_bytes(facts.size)));
    }
    if (!S_ISCHR(facts.mode) && !S_ISBLK(facts.mode)) return {};
    return check_device(path, facts.mode, facts.device);
  }

  void descend(const std::string& path, const Entry& entry, const Directory& parent) {
    const bool is_renamed = !entry.redirect.empty() || (parent.is_renamed && !entry.is_opaque);
    directories_.push_back({path, is_renamed, parent.is_from_image});
  }

  Status count_metadata(const std::string& path, const Entry& entry) {
    metadata_bytes_ += path.size() + entry.redirect.size();
    for (const auto& [name, value] : entry.facts.attributes) {
      metadata_bytes_ += name.size() + value.size();
    }
    if (found_.entries.size() >= limits_.max_entries) return too_many();
    if (metadata_bytes_ <= kMaxMetadataBytes) return {};
    return Error(Code::kResourceExhausted, fmt::format("its names and attributes have over {}",
                                                       format_bytes(kMaxMetadataBytes)));
  }

  /// Counts the content once for all names. `is_shell`: the content is that of the image.
  Status count_content(const std::string& path, Entry& entry, const struct statx& status,
                       bool is_shell) {
    if (entry.is_whiteout || S_ISDIR(status.stx_mode)) return {};
    if (!known_.mapped.empty() || !known_.left_out.empty()) recognise(path, entry);
    const bool is_first = status.stx_nlink == 1 || ++names_[entry.facts.id] == 1;
    if (!S_ISREG(status.stx_mode) || !is_first || entry.is_left_out) return {};
    entry.content_bytes = status.stx_size;
    if (!is_shell && !entry.is_from_image) {
      entry.content_bytes =
          std::min<std::uint64_t>(status.stx_size, status.stx_blocks * kBlockBytes);
    }
    found_.bytes += entry.content_bytes;
    if (found_.bytes <= limits_.max_bytes) return {};
    return Error(Code::kResourceExhausted,
                 fmt::format("it has more than {}, which is the limit for writable layers",
                             format_bytes(limits_.max_bytes)));
  }

  /// With index=on, a file of the image with several names keeps them when it is written to, but
  /// the upper directory only has those by which it was.
  Status check_names() const {
    for (const auto& [id, path] : indexed_) {
      const UniqueFd held = hold_beneath(tree_.view, path);
      const auto status = held ? look(held, "") : std::nullopt;
      const auto names = names_.find(id);
      if (!status || status->stx_nlink <= (names == names_.end() ? 1 : names->second)) continue;
      return Error(Code::kUnsupported,
                   fmt::format("{} cannot be carried: the overlay has index=on, and the file has "
                               "another name in the image",
                               shown_path(path)));
    }
    return {};
  }

  void recognise(const std::string& path, Entry& entry) const {
    const UniqueFd held = hold_beneath(tree_.view, path);
    const auto id = held ? procfs::id_of(held) : procfs::FileId();
    entry.is_mapped = known_.mapped.contains(id);
    entry.is_left_out = known_.left_out.contains(id);
  }

  Error too_many() const {
    return Error(Code::kResourceExhausted,
                 fmt::format("it has more than {} files", limits_.max_entries));
  }

  const Tree& tree_;
  const UniqueFd& source_;
  const Limits& limits_;
  const KnownFiles& known_;
  const Time start_ = now();
  std::vector<Directory> directories_;
  std::map<procfs::FileId, std::uint32_t> names_;  ///< how many, of files that have several
  std::map<procfs::FileId, std::string> indexed_;  ///< one name of files of the image that have
  std::uint64_t metadata_bytes_ = 0;
  Snapshot found_;
};

}  // namespace

Result<Snapshot> scan(const Tree& tree, const Limits& limits, const KnownFiles& known) {
  auto found = Scan(tree, limits, known).run();
  if (found) return found;
  return found.error().while_doing("the container's own files in " + shown(tree.point));
}

}  // namespace gcr::layer
