#include "migrate-agent/daemon/listener/registry.h"

#include <fmt/format.h>

#include <algorithm>

namespace gcr::daemon {
namespace {

constexpr std::ptrdiff_t kMaxClaimsPerWorker = 4096;

std::pair<pid_t, std::uint64_t> key_of(const journal::ProcessId& process) {
  return {process.pid(), process.start_time()};
}

}  // namespace

Status Registry::check_processes(WorkerId worker, const journal::ProcessIds& processes) const {
  for (const journal::ProcessId& process : processes) {
    const auto found = claims_.find(key_of(process));
    if (found == claims_.end() || found->second.worker == worker) continue;
    if (found->second.suspended) {
      return Error(Code::kRefused,
                   fmt::format("process {} is suspended (migration {}): resume it first",
                               process.pid(), found->second.migration.to_string()));
    }
    return Error(Code::kRefused,
                 fmt::format("process {} is already being migrated, by migration {}; wait until "
                             "that has ended",
                             process.pid(), found->second.migration.to_string()));
  }
  return {};
}

Status Registry::claim_processes(WorkerId worker, const Uuid& migration,
                                 const journal::ProcessIds& processes) {
  GCR_TRY(check_processes(worker, processes));
  const auto is_workers = [worker](const auto& entry) { return entry.second.worker == worker; };
  const auto is_new = [this](const auto& process) { return !claims_.contains(key_of(process)); };
  if (std::ranges::count_if(claims_, is_workers) + std::ranges::count_if(processes, is_new) >
      kMaxClaimsPerWorker) {
    return Error(Code::kResourceExhausted,
                 fmt::format("one migration moves at most {} processes", kMaxClaimsPerWorker));
  }
  for (const auto& process : processes) claims_.emplace(key_of(process), Claim{worker, migration});
  return {};
}

void Registry::mark_suspended(WorkerId worker) {
  for (auto& [process, claim] : claims_) {
    if (claim.worker == worker) claim.suspended = true;
  }
}

void Registry::take_over_suspended(WorkerId worker, const Uuid& migration) {
  for (auto& [process, claim] : claims_) {
    if (claim.migration == migration && claim.suspended) claim = {worker, migration};
  }
}

Status Registry::register_migration(WorkerId worker, const Uuid& migration) {
  const auto is_workers = [worker](const auto& entry) { return entry.second == worker; };
  if (std::ranges::any_of(migrations_, is_workers)) {
    return Error(Code::kRefused, "this worker has already registered a migration");
  }
  if (!migrations_.emplace(migration, worker).second) {
    return Error(Code::kRefused, fmt::format("migration {} is already running on this host",
                                             migration.to_string()));
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

}  // namespace gcr::daemon
