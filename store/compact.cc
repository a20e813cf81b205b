// remove_unneeded() of survey.h. Packs are visited by descending share of needed contents. If a
// later pack has a content that an earlier one has too, and the earlier copy can be read and
// verified, the later copy counts as unneeded. Everything on which a removal relies is synced
// before. A rewritten pack gets its name before the old one is removed, so each needed content is
// in a named pack at every moment.
#include <fcntl.h>

#include <algorithm>

#include "src/base/log.h"
#include "store/survey.h"

namespace gcr::store {
namespace {

/// The needed contents of one pack.
struct Use {
  const Packs::Pack* pack = nullptr;
  std::vector<IndexEntry> needed;
  std::uint64_t needed_bytes = 0;  ///< compressed size
};

class Collector {
 public:
  Collector(const Directory& directory, const Needs& needs, const Packs& packs)
      : directory_(directory), needs_(needs), packs_(packs) {}

  /// Returns the number of bytes freed.
  Result<std::uint64_t> run(bool rewrite) {
    const std::vector<Use> uses = divide();
    GCR_TRY(make_durable(uses));
    for (const Use& use : uses) {
      if (use.needed.empty()) GCR_TRY(remove(*use.pack));
    }
    if (where_.size() == needs_.size()) GCR_TRY(remove_unfinished());
    for (const Use& use : uses) {
      const bool is_sparse = use.needed_bytes * 2 < use.pack->file_bytes;
      if (rewrite && !use.needed.empty() && is_sparse) GCR_TRY(rewrite_pack(use));
    }
    GCR_TRY(directory_.sync());
    return freed_bytes_;
  }

 private:
  /// Determines for which needed contents each pack is used. If several packs have a content, the
  /// pack with the largest needed part is used, so a rewritten pack replaces its predecessor.
  std::vector<Use> divide() {
    std::vector<Use> uses;
    for (const Packs::Pack& pack : packs_.packs()) uses.push_back(use_of(pack));
    std::ranges::stable_sort(uses, std::ranges::greater(), [](const Use& use) {
      return static_cast<double>(use.needed_bytes) / static_cast<double>(use.pack->file_bytes);
    });
    for (Use& use : uses) {
      std::erase_if(use.needed, [&](const IndexEntry& entry) { return is_elsewhere(entry); });
      use.needed_bytes = 0;
      for (const IndexEntry& entry : use.needed) {
        use.needed_bytes += entry.location.stored_bytes;
        where_.insert_or_assign(entry.name, entry.location);
      }
    }
    return uses;
  }

  Use use_of(const Packs::Pack& pack) const {
    Use use{&pack, {}, 0};
    for (const IndexEntry& entry : pack.index) {
      const Needs::Need* need = needs_.find(entry.name);
      if (need == nullptr || need->raw_bytes != entry.location.raw_bytes) continue;
      use.needed.push_back(entry);
      use.needed_bytes += entry.location.stored_bytes;
    }
    return use;
  }

  bool is_elsewhere(const IndexEntry& entry) {
    const auto other = where_.find(entry.name);
    return other != where_.end() && is_good(entry.name, other->second);
  }

  bool is_good(const ContentName& name, const Location& location) {
    const Needs::Need& need = *needs_.find(name);
    raw_.resize(need.raw_bytes);
    const Status read = packs_.read_at(need.key, name, location, raw_);
    if (!read) spdlog::warn("{}: {}", directory_.path().native(), read.error().message());
    return read.has_value();
  }

  /// Makes durable what the removals rely on. A pack that no checkpoint's writer has synced may
  /// come from a prune that died before the sync; and the removal of manifests may be undone by a
  /// power failure.
  Status make_durable(const std::vector<Use>& uses) const {
    for (const Use& use : uses) {
      const auto writer = writer_of_pack(use.pack->file_name);
      if (use.needed.empty() || !writer || needs_.wrote(*writer)) continue;
      GCR_ASSIGN(const UniqueFd file, directory_.open_file(use.pack->file_name, O_RDONLY));
      const int error = sync_file(file.get());
      if (error != 0) return directory_.failed(error, "cannot sync a pack to disk");
    }
    return directory_.sync();
  }

  Status remove(const Packs::Pack& pack) {
    GCR_TRY(directory_.remove(pack.file_name));
    freed_bytes_ += pack.file_bytes;
    return {};
  }

  /// Removes unfinished packs and manifests of dead writers. Call it only if no content is missing:
  /// otherwise a damaged pack may have the only copy.
  Status remove_unfinished() {
    for (const std::string& file_name : packs_.others()) {
      const auto writer = writer_of_pack(file_name);
      if (writer && !needs_.wrote(*writer)) GCR_TRY(directory_.remove(file_name));
    }
    GCR_ASSIGN(const auto entries, directory_.list(""));
    for (const std::string& entry : entries) {
      if (entry.ends_with(".new") && is_entry(entry)) GCR_TRY(directory_.remove(entry));
    }
    return {};
  }

  /// Copies the needed contents of a pack to a new pack and removes the old one. If copying fails,
  /// the old pack stays unchanged.
  Status rewrite_pack(const Use& use) {
    const std::string file_name = pack_file_of(Uuid::random(), 0);
    const auto copied = copy_to(file_name, use);
    if (copied) {
      GCR_TRY(remove(*use.pack));
      freed_bytes_ -= std::min(freed_bytes_, *copied);
      return {};
    }
    spdlog::warn("cannot compact {}/{}, which is kept as it is: {}", directory_.path().native(),
                 use.pack->file_name, copied.error().message());
    return directory_.remove(file_name);
  }

  /// Copies the needed contents to a new pack; returns their bytes. On success everything is on
  /// disk.
  Result<std::uint64_t> copy_to(const std::string& file_name, const Use& use) {
    GCR_ASSIGN(const auto fresh, PackWriter::create(directory_, file_name));
    std::vector<std::byte> stored;
    for (const auto& [name, location] : use.needed) {
      const Needs::Need& need = *needs_.find(name);
      stored.resize(location.stored_bytes);
      raw_.resize(location.raw_bytes);
      GCR_TRY(packs_.read_stored(location, stored));
      GCR_TRY(decode(need.key, name, location, stored, raw_));
      GCR_TRY(fresh->add(name, stored, location.raw_bytes, location.codec));
    }
    GCR_TRY(fresh->finish());
    GCR_TRY(directory_.sync());
    return fresh->live_bytes();
  }

  const Directory& directory_;
  const Needs& needs_;
  const Packs& packs_;
  std::unordered_map<ContentName, Location, HashName> where_;
  std::vector<std::byte> raw_;
  std::uint64_t freed_bytes_ = 0;
};

}  // namespace

Result<std::uint64_t> remove_unneeded(const Directory& directory, const Needs& needs,
                                      bool rewrite) {
  if (needs.problem())
    return Error(Code::kInternal,
                 "a manifest is invalid, so it is unknown which contents are needed");
  GCR_ASSIGN(const auto packs, Packs::open(directory));
  return Collector(directory, needs, *packs).run(rewrite);
}

}  // namespace gcr::store
