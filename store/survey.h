// The contents that the checkpoints of a directory need, and the removal of all others.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "store/manifest.h"
#include "store/pack.h"

namespace gcr::store {

/// Uses a part of the name as its hash value. Names are hashes already; only the directory's owner
/// could choose them.
struct HashName {
  std::size_t operator()(const ContentName& name) const;
};

/// A file with a manifest.
struct Found {
  std::string file_name;
  bool is_published = false;  ///< not merely sealed, and not owned by a restore
  Result<proto::Manifest> manifest;
};

/// Calls `visit` for each file with a manifest, one at a time; several are read concurrently.
Status visit_manifests(const Directory& directory, const control::TlsFiles& tls,
                       const std::function<void(Found)>& visit);

/// The name of the i-th content of a manifest.
ContentName content_name(const proto::Manifest& manifest, std::size_t i);
Key key_of(std::string_view bytes);

/// The contents that all manifests of a directory need.
class Needs {
 public:
  struct Need {
    Key key;
    std::uint32_t raw_bytes = 0;
  };

  static Result<Needs> of(const Directory& directory, const control::TlsFiles& tls);

  const Need* find(const ContentName& name) const;
  std::size_t size() const { return contents_.size(); }
  bool wrote(const Uuid& checkpoint) const { return checkpoints_.contains(checkpoint); }
  /// The error of the first invalid manifest, whose needs are unknown.
  const std::optional<Error>& problem() const { return problem_; }

  void add(const Found& found);

 private:
  std::unordered_map<ContentName, Need, HashName> contents_;
  std::set<Uuid> checkpoints_;
  std::optional<Error> problem_;
};

/// Removes packs without a needed content, and leftovers of writers that died. With `rewrite`,
/// copies the needed contents of a pack to a new one if they are less than half of it. The caller
/// holds the directory's lock; all manifests must be valid, else kInternal. Returns the number of
/// bytes freed. If the process is killed at any moment, no needed content is lost.
Result<std::uint64_t> remove_unneeded(const Directory& directory, const Needs& needs, bool rewrite);

}  // namespace gcr::store
