#include "store/upkeep.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <unordered_set>

#include "src/base/side_by_side.h"
#include "src/control/wire.h"
#include "store/survey.h"

namespace gcr::store {
namespace {

constexpr std::size_t kReaders = 8;

using Names = std::unordered_set<ContentName, HashName>;

Names names_in(const Packs& packs) {
  Names names;
  for (const Packs::Pack& pack : packs.packs()) {
    for (const IndexEntry& entry : pack.index) names.insert(entry.name);
  }
  return names;
}

std::optional<Error> find_missing(const Names& there, const proto::Manifest& manifest) {
  const auto count = static_cast<std::size_t>(manifest.content_bytes_size());
  std::size_t missing = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!there.contains(content_name(manifest, i))) ++missing;
  }
  if (missing == 0) return std::nullopt;
  return Error(Code::kDataLoss, fmt::format("{} of the {} contents of {} are missing", missing,
                                            count, manifest.name()));
}

/// All published manifests, oldest first; kRefused if one is invalid.
Result<std::vector<proto::Manifest>> all_published(const Directory& directory,
                                                   const control::TlsFiles& tls) {
  std::vector<proto::Manifest> manifests;
  std::optional<Error> problem;
  GCR_TRY(visit_manifests(directory, tls, [&](Found found) {
    if (!found.manifest) {
      problem = found.manifest.error();
    } else if (found.is_published) {
      // Needs has its contents; drop them here to save memory.
      found.manifest->clear_content_names();
      found.manifest->clear_vram();
      found.manifest->clear_memories();
      manifests.push_back(*std::move(found.manifest));
    }
  }));
  if (problem) {
    return Error(
        Code::kRefused,
        fmt::format(
            "nothing was removed, because it is unknown which data one checkpoint needs: {}; if "
            "that checkpoint is no longer wanted, `gcr-migrate prune --remove NAME` removes it",
            problem->message()));
  }
  std::ranges::sort(manifests, is_older);
  return manifests;
}

/// Whether the manifest is not among the newest `keep` of its job.
bool is_surplus(const std::vector<proto::Manifest>& manifests, std::size_t i, unsigned keep) {
  std::size_t newer = 0;
  for (std::size_t j = i + 1; j < manifests.size(); ++j) {
    newer += is_same_job(manifests[i], manifests[j]) ? 1 : 0;
  }
  return keep != 0 && newer >= keep;
}

Result<Pruned> prune_locked(const Directory& directory, unsigned keep, const proto::Manifest* only,
                            const control::TlsFiles& tls) {
  GCR_ASSIGN(const auto manifests, all_published(directory, tls));
  Pruned pruned;
  for (std::size_t i = 0; i < manifests.size(); ++i) {
    if (only != nullptr && !is_same_job(manifests[i], *only)) continue;
    if (!is_surplus(manifests, i, keep)) continue;
    GCR_TRY(directory.remove(file_of(manifests[i].name())));
    pruned.removed.push_back(manifests[i].name());
  }
  GCR_ASSIGN(const Needs needs, Needs::of(directory, tls));
  GCR_ASSIGN(pruned.freed_bytes, remove_unneeded(directory, needs, true));
  return pruned;
}

}  // namespace

Result<std::vector<Listed>> list(const Directory& directory, const control::TlsFiles& tls) {
  GCR_ASSIGN(const auto packs, Packs::open(directory));
  const Names there = names_in(*packs);
  std::vector<Listed> result;
  GCR_TRY(visit_manifests(directory, tls, [&](Found found) {
    const auto restore = restore_of(found.file_name);
    if (!found.is_published && !restore) return;
    const std::string& file_name = found.file_name;
    Listed one{.name = file_name.substr(0, file_name.rfind('.')), .restore = restore};
    if (restore && found.manifest) one.name = found.manifest->name();
    if (!found.manifest) {
      one.problem = found.manifest.error();
    } else if (auto missing = find_missing(there, *found.manifest)) {
      one.problem = std::move(missing);
    } else {
      one.manifest = *std::move(found.manifest);
    }
    result.push_back(std::move(one));
  }));
  std::ranges::sort(result, [](const Listed& one, const Listed& other) {
    if (one.problem || other.problem) return !one.problem && other.problem;
    return is_older(one.manifest, other.manifest);
  });
  return result;
}

Result<Verified> verify(const Directory& directory, const proto::Manifest& manifest) {
  GCR_ASSIGN(const auto packs, Packs::open(directory));
  const Key key = key_of(manifest.content_key());
  const auto count = static_cast<std::size_t>(manifest.content_bytes_size());
  std::atomic<std::uint64_t> bytes = 0;
  GCR_TRY(share_out(count, kReaders, [&](std::size_t i) -> Status {
    thread_local std::vector<std::byte> content;
    content.resize(manifest.content_bytes(static_cast<int>(i)));
    const Status read = packs->read(key, content_name(manifest, i), content);
    bytes += content.size();
    if (read) return {};
    const bool is_lost = read.error().code() == Code::kNotFound;
    return Error(is_lost ? Code::kDataLoss : read.error().code(),
                 fmt::format("content {} of {} of {} is lost: {}", i + 1, count, manifest.name(),
                             read.error().message()));
  }));
  return Verified{count, bytes};
}

bool is_same_job(const proto::Manifest& one, const proto::Manifest& other) {
  if (one.job().members().empty() || other.job().members().empty()) {
    return one.job().members().empty() && other.job().members().empty();
  }
  const proto::ProcessFacts& a = one.job().members(0);
  const proto::ProcessFacts& b = other.job().members(0);
  return a.uid() == b.uid() && a.command() == b.command() &&
         a.pid_in_namespace() == b.pid_in_namespace();
}

Status remove(const Directory& directory, const std::vector<std::string>& names) {
  GCR_ASSIGN(const UniqueFd lock, directory.lock());
  for (const std::string& name : names) {
    if (is_name(name)) {
      GCR_ASSIGN(const bool is_there, directory.exists(file_of(name)));
      if (is_there) continue;
    }
    return Error(Code::kNotFound, fmt::format("{} has no checkpoint {}", directory.path().native(),
                                              control::printable(name)));
  }
  for (const std::string& name : names) GCR_TRY(directory.remove(file_of(name)));
  return directory.sync();
}

Result<Pruned> prune(const Directory& directory, unsigned keep, const control::TlsFiles& tls) {
  GCR_ASSIGN(const UniqueFd lock, directory.lock());
  return prune_locked(directory, keep, nullptr, tls);
}

Result<Pruned> prune_job(const Directory& directory, unsigned keep, const proto::Manifest& newest,
                         const control::TlsFiles& tls) {
  return prune_locked(directory, keep, &newest, tls);
}

Status begin_restore(const Directory& directory, const std::string& name, const Uuid& restore) {
  const Status begun = directory.rename(file_of(name), restoring_file_of(restore));
  if (begun) return directory.sync();
  if (begun.error().code() != Code::kNotFound) return begun;
  return Error(Code::kNotFound,
               fmt::format("{} no longer has the checkpoint {}: another restore owns "
                           "it",
                           directory.path().native(), name));
}

Status cancel_restore(const Directory& directory, const std::string& name, const Uuid& restore) {
  GCR_TRY(directory.rename(restoring_file_of(restore), file_of(name)));
  return directory.sync();
}

Status end_restore(const Directory& directory, const Uuid& restore, const control::TlsFiles& tls) {
  GCR_TRY(directory.remove(restoring_file_of(restore)));
  GCR_TRY(directory.sync());
  GCR_ASSIGN(const UniqueFd lock, directory.lock());
  GCR_TRY(prune_locked(directory, 0, nullptr, tls));
  directory.remove_if_empty();
  return {};
}

}  // namespace gcr::store
