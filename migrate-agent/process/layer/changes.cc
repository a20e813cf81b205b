#include "migrate-agent/process/layer/changes.h"

#include <sys/stat.h>

#include <algorithm>

namespace gcr::layer {
namespace {

const Entry* entry_at(const Snapshot& snapshot, const std::string& path) {
  const auto found = snapshot.entries.find(path);
  return found == snapshot.entries.end() ? nullptr : &found->second;
}

/// Whether it is the same inode, or the image's directory that overlayfs has copied.
bool is_same_directory(const Entry& was, const Entry& now) {
  if (!S_ISDIR(was.facts.mode)) return false;
  if (was.is_from_image) return true;
  return was.facts.id == now.facts.id && was.facts.born == now.facts.born && !now.is_from_image;
}

/// Whether the destination has something else there than this directory, or may have.
bool is_other_directory(const Entry* was, const Entry& now) {
  if (was == nullptr) return now.is_opaque || !now.redirect.empty();
  return !is_same_directory(*was, now) || was->is_opaque != now.is_opaque ||
         was->redirect != now.redirect;
}

bool differs(const Entry* was, const Entry& now) {
  return was == nullptr || now.is_mapped || !was->is_settled || was->is_absent() ||
         was->is_from_image != now.is_from_image || was->facts != now.facts;
}

class Comparison {
 public:
  Comparison(const Snapshot& before, const Snapshot& now) : before_(before), now_(now) {}

  Changes run() {
    for (const auto& [path, entry] : now_.entries) compare(path, entry);
    for (const auto& [path, entry] : before_.entries) {
      if (is_missing(path)) found_.emplace(path, Change{Action::kRemove, {}});
    }
    add_other_names();
    return std::move(found_);
  }

 private:
  void compare(const std::string& path, const Entry& now) {
    if (has_rebuilt_ && is_below(path, rebuilt_)) {
      if (!now.is_absent()) add(path, Action::kSend, now);
      return;
    }
    const Entry* const was = entry_at(before_, path);
    if (now.is_absent()) {
      if (was == nullptr || !was->is_absent()) add(path, Action::kRemove, now);
    } else if (S_ISDIR(now.facts.mode) && is_other_directory(was, now)) {
      add(path, Action::kRebuild, now);
      has_rebuilt_ = true;
      rebuilt_ = path;
    } else if (differs(was, now)) {
      add(path, Action::kSend, now);
    }
  }

  /// Whether it is gone from a directory that is otherwise as it was.
  bool is_missing(const std::string& path) const {
    if (now_.entries.contains(path)) return false;
    const std::string directory = parent_of(path);
    const Entry* const parent = entry_at(now_, directory);
    return parent != nullptr && S_ISDIR(parent->facts.mode) && !is_rebuilt(directory);
  }

  bool is_rebuilt(std::string path) const {
    for (;; path = parent_of(path)) {
      const auto found = found_.find(path);
      if (found != found_.end() && found->second.action == Action::kRebuild) return true;
      if (path.empty()) return false;
    }
  }

  /// All names of a file are sent together, or none.
  void add_other_names() {
    Files sent;
    for (const auto& [path, change] : found_) {
      if (change.action == Action::kSend && change.entry.facts.links > 1) {
        sent.insert(change.entry.facts.id);
      }
    }
    if (sent.empty()) return;
    for (const auto& [path, entry] : now_.entries) {
      const bool is_file = entry.facts.links > 1 && !entry.is_absent();
      if (is_file && sent.contains(entry.facts.id)) add(path, Action::kSend, entry);
    }
  }

  void add(const std::string& path, Action action, const Entry& entry) {
    found_.try_emplace(path, Change{action, entry});
  }

  const Snapshot& before_;
  const Snapshot& now_;
  bool has_rebuilt_ = false;
  std::string rebuilt_;  ///< the directory that was rebuilt last
  Changes found_;
};

}  // namespace

Changes changes(const Snapshot& before, const Snapshot& now) {
  return Comparison(before, now).run();
}

std::uint64_t content_bytes(const Changes& changes) {
  std::uint64_t bytes = 0;
  for (const auto& [path, change] : changes) {
    if (change.action == Action::kSend) bytes += change.entry.content_bytes;
  }
  return bytes;
}

}  // namespace gcr::layer
