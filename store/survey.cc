#include "store/survey.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "src/base/side_by_side.h"

namespace gcr::store {
namespace {

constexpr std::size_t kReadAtOnce = 8;

bool is_published(const std::string& entry) { return entry.ends_with(".checkpoint"); }

}  // namespace

std::size_t HashName::operator()(const ContentName& name) const {
  std::size_t hash = 0;
  std::memcpy(&hash, name.data(), sizeof hash);
  return hash;
}

/// Reading the manifest of a job with 10 GiB takes 50 ms, mostly for verifying and parsing.
Status visit_manifests(const Directory& directory, const control::TlsFiles& tls,
                       const std::function<void(Found)>& visit) {
  GCR_ASSIGN(auto entries, directory.list(""));
  std::erase_if(entries, [](const std::string& entry) {
    return !is_published(entry) && !entry.ends_with(".voted") && !restore_of(entry);
  });
  for (std::size_t first = 0; first < entries.size(); first += kReadAtOnce) {
    const std::size_t count = std::min(entries.size() - first, kReadAtOnce);
    std::array<std::optional<Result<proto::Manifest>>, kReadAtOnce> manifests;
    GCR_TRY(share_out(count, count, [&](std::size_t i) -> Status {
      manifests[i] = read_manifest(directory, entries[first + i], tls);
      return {};
    }));
    for (std::size_t i = 0; i < count; ++i) {
      const std::string& entry = entries[first + i];
      visit({entry, is_published(entry), *std::move(manifests[i])});
    }
  }
  return {};
}

ContentName content_name(const proto::Manifest& manifest, std::size_t i) {
  ContentName name;
  std::memcpy(name.data(), manifest.content_names().data() + i * name.size(), name.size());
  return name;
}

Key key_of(std::string_view bytes) {
  Key key{};
  std::memcpy(key.data(), bytes.data(), std::min(bytes.size(), key.size()));
  return key;
}

Result<Needs> Needs::of(const Directory& directory, const control::TlsFiles& tls) {
  Needs needs;
  GCR_TRY(visit_manifests(directory, tls, [&](const Found& found) { needs.add(found); }));
  return needs;
}

const Needs::Need* Needs::find(const ContentName& name) const {
  const auto found = contents_.find(name);
  return found == contents_.end() ? nullptr : &found->second;
}

void Needs::add(const Found& found) {
  if (!found.manifest) {
    if (!problem_) problem_ = found.manifest.error();
    return;
  }
  const proto::Manifest& manifest = *found.manifest;
  checkpoints_.insert(to_uuid(manifest.checkpoint_id()));
  const Key key = key_of(manifest.content_key());
  for (int i = 0; i < manifest.content_bytes_size(); ++i) {
    contents_.try_emplace(content_name(manifest, static_cast<std::size_t>(i)),
                          Need{key, manifest.content_bytes(i)});
  }
}

}  // namespace gcr::store
