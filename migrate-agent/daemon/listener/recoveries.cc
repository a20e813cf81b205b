#include "migrate-agent/daemon/listener/recoveries.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "migrate-agent/linux/procfs/process_handle.h"

namespace gcr::daemon {
namespace {

/// Reads a journal without waiting. That is safe here: Began never changes, and later records do
/// not change while no process owns the journal. A journal that cannot be read counts as damaged.
journal::Contents peek_or_damaged(const std::filesystem::path& path) {
  auto contents = journal::peek(path);
  if (contents) return *std::move(contents);
  journal::Contents none;
  none.damage = contents.error();
  return none;
}

/// Returns whether a migration is finished, which is final even if a process still owns the
/// journal: a recovery that waited for it may hold it for a moment.
bool is_finished(const journal::Contents& contents) {
  return !contents.damage && !contents.records.empty() && !journal::unfinished(contents.records);
}

/// Returns the members of the job; none if no record can be read.
journal::ProcessIds members_of(const journal::Contents& contents) {
  if (contents.records.empty()) return {};
  return journal::members_of(contents.records);
}

/// Returns the source journal in which the job is suspended after its arrival, for a destination's
/// journal of a job that moves suspended; else none.
std::optional<journal::Entry> suspension_in(const journal::Entry& entry) {
  if (entry.role != journal::Began::DESTINATION) return std::nullopt;
  const journal::Contents contents = peek_or_damaged(entry.path);
  if (contents.records.empty()) return std::nullopt;
  const std::string& id = contents.records.front().began().suspends();
  if (id.empty()) return std::nullopt;
  return journal::entry(entry.path.parent_path().parent_path(), to_uuid(id),
                        journal::Began::SOURCE);
}

}  // namespace

enum class Recoveries::Need : std::uint8_t {
  kInvalid = 0,
  kNone,       ///< there is no journal
  kFinished,   ///< nothing is left to do
  kRecovery,   ///< it is unfinished, or owned
  kOperator,   ///< it is damaged
  kSuspended,  ///< its job is suspended
};

Recoveries::Need Recoveries::need_of(const std::filesystem::path& path) const {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return Need::kNone;
  const auto owned = journal::is_owned(path);
  if (!owned || *owned) return Need::kRecovery;
  const journal::Contents contents = peek_or_damaged(path);
  if (contents.damage) {
    spdlog::error("{} is damaged and needs an operator (gcr-migrate resolve): {}", path.string(),
                  contents.damage->message());
    on_damage_();
    return Need::kOperator;
  }
  if (journal::suspended(contents.records)) return Need::kSuspended;
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
    spdlog::error("cannot recover unfinished migrations: {}", entries.error().message());
    return;
  }
  for (const journal::Entry& entry : *entries) {
    const Need need = need_of(entry.path);
    if (need == Need::kRecovery || need == Need::kSuspended) add(entry);
  }
}

void Recoveries::add_after(const journal::Entry& entry, bool well) {
  if (const auto suspension = suspension_in(entry)) add_after(*suspension, well);
  if (well && is_finished(peek_or_damaged(entry.path))) return;
  const Need need = need_of(entry.path);
  if (need != Need::kNone && need != Need::kOperator) add(entry);
}

/// Begins a recovery, unless the journal already has one or no more are started.
void Recoveries::add(const journal::Entry& entry) {
  const bool has_one = std::ranges::any_of(
      recoveries_, [&](const auto& other) { return other.second.entry.path == entry.path; });
  if (stopped_ || has_one) return;
  const WorkerId id = next_id_();
  claim_processes(id, entry);
  start(id, recoveries_.emplace(id, Recovery{entry, asio::steady_timer(io_)}).first->second);
}

Result<journal::ProcessIds> Recoveries::take_suspended(const journal::Entry& entry) {
  const journal::Contents contents = peek_or_damaged(entry.path);
  if (!journal::suspended(contents.records)) {
    return Error(Code::kRefused,
                 fmt::format("migration {} is not suspended", entry.migration.to_string()));
  }
  std::erase_if(recoveries_, [&](const auto& one) { return one.second.entry.path == entry.path; });
  return members_of(contents);
}

/// Opens the living processes of a suspended job, so that the end of each is noticed.
void Recoveries::open_members(Recovery& recovery) {
  recovery.members.clear();
  const journal::Contents contents = peek_or_damaged(recovery.entry.path);
  if (!journal::suspended(contents.records)) return;
  for (const journal::ProcessId& member : members_of(contents)) {
    const auto process = procfs::Process::open(member.pid(), member.start_time());
    if (!process || process->has_ended()) continue;
    const int pidfd = ::fcntl(process->pidfd(), F_DUPFD_CLOEXEC, 0);
    if (pidfd >= 0) recovery.members.emplace_back(io_, pidfd);
  }
}

/// Waits until a process of a suspended job ends; then starts a recovery worker, which examines the
/// rest of the job.
void Recoveries::wait_suspended(WorkerId id, Recovery& recovery) {
  claim_processes(id, recovery.entry);
  recovery.waits = true;
  for (auto& end : recovery.members) {
    end.async_wait(asio::posix::stream_descriptor::wait_read, [this, id](std::error_code error) {
      const auto found = recoveries_.find(id);
      const bool waits = found != recoveries_.end() && found->second.waits;
      if (!error && !stopped_ && waits) start(id, found->second);
    });
  }
}

void Recoveries::claim_processes(WorkerId id, const journal::Entry& entry) {
  const journal::Contents contents = peek_or_damaged(entry.path);
  if (entry.role != journal::Began::SOURCE || contents.records.empty()) return;
  const Status claimed = registry_.claim_processes(id, entry.migration, members_of(contents));
  if (!claimed) spdlog::error("{}: {}", entry.path.string(), claimed.error().message());
  if (journal::suspended(contents.records)) registry_.mark_suspended(id);
}

void Recoveries::start(WorkerId id, Recovery& recovery) {
  recovery.started = Clock::now();
  recovery.waits = false;
  open_members(recovery);
  if (!start_(id, recovery.entry.path.filename())) start_later(id, recovery);
}

void Recoveries::start_later(WorkerId id, Recovery& recovery) {
  // A recovery that ran for long has not failed at its start: the pause begins anew.
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
  Need need = need_of(found->second.entry.path);
  if (done && need == Need::kSuspended) return wait_suspended(id, found->second);
  if (done) need = Need::kNone;
  if (need == Need::kNone || need == Need::kOperator) {
    const auto suspension = suspension_in(found->second.entry);
    registry_.release(id);
    recoveries_.erase(found);
    if (suspension) add_after(*suspension, true);
  } else if (!stopped_) {
    start_later(id, found->second);
  }
}

void Recoveries::stop() { stopped_ = true; }

}  // namespace gcr::daemon
