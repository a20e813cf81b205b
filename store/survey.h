// What the checkpoints of a directory need of its packs.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "store/manifest.h"
#include "store/pack.h"

namespace gcr::store {

/// The names are hashes already; whoever can choose them owns the directory.
struct HashName {
  std::size_t operator()(const ContentName& name) const;
};

/// One file with a manifest.
struct Found {
  std::string file_name;
  bool is_published = false;  ///< not sealed alone, and no restore has it
  Result<proto::Manifest> manifest;
};

/// Visits one after the other; several are read at a time.
Status visit_manifests(const Directory& directory, const control::TlsFiles& tls,
                       const std::function<void(Found)>& visit);

/// The i-th content of a manifest.
ContentName content_name(const proto::Manifest& manifest, std::size_t i);
Key key_of(std::string_view bytes);

/// What all manifests together need.
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
  /// Of the first manifest that cannot be believed: what it needs is unknown.
  const std::optional<Error>& problem() const { return problem_; }

  void add(const Found& found);

 private:
  std::unordered_map<ContentName, Need, HashName> contents_;
  std::set<Uuid> checkpoints_;
  std::optional<Error> problem_;
};

}  // namespace gcr::store
