#include "migrate-agent/daemon/registry.h"

#include <fmt/format.h>

#include <algorithm>

namespace gcr::agent {
namespace {

constexpr std::ptrdiff_t kMaxClaimsPerWorker = 4096;

}  // namespace

Status Registry::check_process(WorkerId worker, pid_t pid, std::uint64_t start_time) const {
  const auto found = claims_.find(std::make_pair(pid, start_time));
  if (found == claims_.end() || found->second.worker == worker) return {};
  return Error(Code::kRefused,
               fmt::format("process {} is being migrated already, by migration {}; wait until "
                           "that has ended",
                           pid, found->second.migration.to_string()));
}

Status Registry::claim_process(WorkerId worker, const Uuid& migration, pid_t pid,
                               std::uint64_t start_time) {
  GCR_TRY(check_process(worker, pid, start_time));
  const auto key = std::make_pair(pid, start_time);
  if (claims_.contains(key)) return {};
  const auto is_workers = [worker](const auto& entry) { return entry.second.worker == worker; };
  if (std::ranges::count_if(claims_, is_workers) >= kMaxClaimsPerWorker) {
    return Error(Code::kResourceExhausted,
                 fmt::format("one migration moves at most {} processes", kMaxClaimsPerWorker));
  }
  claims_.emplace(key, Claim{worker, migration});
  return {};
}

Status Registry::register_migration(WorkerId worker, const Uuid& migration) {
  const auto is_workers = [worker](const auto& entry) { return entry.second == worker; };
  if (std::ranges::any_of(migrations_, is_workers)) {
    return Error(Code::kRefused, "this worker has registered a migration already");
  }
  if (!migrations_.emplace(migration, worker).second) {
    return Error(Code::kRefused,
                 fmt::format("migration {} is under way here already", migration.to_string()));
  }
  return {};
}

std::optional<WorkerId> Registry::owner_of(const Uuid& migration) const {
  const auto found = migrations_.find(migration);
  return found == migrations_.end() ? std::nullopt : std::optional(found->second);
}

void Registry::release_processes(WorkerId worker) {
  std::erase_if(claims_, [worker](const auto& entry) { return entry.second.worker == worker; });
}

void Registry::release(WorkerId worker) {
  release_processes(worker);
  std::erase_if(migrations_, [worker](const auto& entry) { return entry.second == worker; });
}

}  // namespace gcr::agent
