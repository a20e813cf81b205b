#include "migrate-agent/daemon/recoveries.h"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace gcr::agent {
namespace {

/// Began never changes; the records after it do not change while nobody owns the journal. A journal
/// that cannot be read counts as damaged.
journal::Contents look_at(const std::filesystem::path& path) {
  auto contents = journal::peek(path);
  if (contents) return *std::move(contents);
  journal::Contents none;
  none.damage = contents.error();
  return none;
}

}  // namespace

enum class Recoveries::Need : std::uint8_t {
  kInvalid = 0,
  kNone,      ///< there is no journal
  kFinished,  ///< nothing is left to do
  kRecovery,  ///< it is unfinished, or owned
  kOperator,  ///< it is damaged
};

Recoveries::Need Recoveries::need_of(const std::filesystem::path& path) const {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return Need::kNone;
  const auto owned = journal::is_owned(path);
  if (!owned || *owned) return Need::kRecovery;
  const journal::Contents contents = look_at(path);
  if (contents.damage) {
    spdlog::error("{} needs an operator: {}", path.string(), contents.damage->message());
    on_damage_();
    return Need::kOperator;
  }
  return journal::unfinished(contents.records) ? Need::kRecovery : Need::kFinished;
}

Recoveries::Recoveries(asio::io_context& io, Registry& registry, std::function<WorkerId()> next_id,
                       Start start, std::function<void()> on_damage)
    : io_(io),
      registry_(registry),
      next_id_(std::move(next_id)),
      start_(std::move(start)),
      on_damage_(std::move(on_damage)) {}

void Recoveries::begin(const std::filesystem::path& state_dir) {
  const auto pruned = journal::prune(state_dir);
  if (!pruned) spdlog::warn("cannot remove old journals: {}", pruned.error().message());
  const auto entries = journal::list(state_dir);
  if (!entries) {
    spdlog::error("unfinished migrations are not recovered: {}", entries.error().message());
    return;
  }
  for (const journal::Entry& entry : *entries) {
    if (need_of(entry.path) == Need::kRecovery) add(entry);
  }
}

void Recoveries::add_after(const journal::Entry& entry, bool well) {
  const Need need = need_of(entry.path);
  if (need == Need::kRecovery || (need == Need::kFinished && !well)) add(entry);
}

void Recoveries::add(const journal::Entry& entry) {
  const auto is_it = [&](const auto& other) { return other.second.entry.path == entry.path; };
  if (stopped_ || std::ranges::any_of(recoveries_, is_it)) return;
  const WorkerId id = next_id_();
  claim_processes(id, entry);
  auto& recovery = recoveries_.emplace(id, Recovery{entry, asio::steady_timer(io_)}).first->second;
  start(id, recovery);
}

void Recoveries::claim_processes(WorkerId id, const journal::Entry& entry) {
  const journal::Contents contents = look_at(entry.path);
  if (entry.role != journal::Began::SOURCE || contents.records.empty()) return;
  const Status claimed =
      registry_.claim_processes(id, entry.migration, contents.records.front().began().members());
  if (!claimed) spdlog::error("{}: {}", entry.path.string(), claimed.error().message());
}

void Recoveries::start(WorkerId id, Recovery& recovery) {
  recovery.started = Clock::now();
  if (!start_(id, recovery.entry.path.filename())) start_later(id, recovery);
}

void Recoveries::start_later(WorkerId id, Recovery& recovery) {
  // One that ran for long has not failed at its start.
  if (Clock::now() - recovery.started > kLongestRecoveryPause) recovery.pause = kFirstRecoveryPause;
  recovery.timer.expires_after(recovery.pause);
  recovery.pause = std::min(2 * recovery.pause, kLongestRecoveryPause);
  recovery.timer.async_wait([this, id](const std::error_code& error) {
    const auto found = recoveries_.find(id);
    if (!error && !stopped_ && found != recoveries_.end()) start(id, found->second);
  });
}

void Recoveries::process_ended(WorkerId id, bool done) {
  const auto found = recoveries_.find(id);
  if (found == recoveries_.end()) return;
  const Need need = done ? Need::kNone : need_of(found->second.entry.path);
  if (need == Need::kNone || need == Need::kOperator) {
    registry_.release(id);
    recoveries_.erase(found);
  } else if (!stopped_) {
    start_later(id, found->second);
  }
}

void Recoveries::stop() { stopped_ = true; }

}  // namespace gcr::agent
