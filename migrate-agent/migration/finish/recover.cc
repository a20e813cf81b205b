// Recovery of a migration whose worker has died or, after the vote, has lost its source.
//
// At the source, a migration is rolled back before the commit and completed after it. At the
// destination, everything is removed before the vote; after the vote the copy stays frozen until
// the source's agent or an operator decides.
//
// recover() reads the state from the journal, and each state has one continuation. Waits (for the
// destination's confirmation, for the source's outcome) are repeated without limit, concurrently
// with a wait for an operator's decision; the first answer ends both. The journal shows only what
// was decided: how far the process was taken apart is read from the process itself
// (migrate-agent/migration/undo). All of this blocks, on a thread of the worker's pool.
#include <asio/experimental/awaitable_operators.hpp>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/migration/entry.h"
#include "migrate-agent/migration/finish/checkpoints.h"
#include "migrate-agent/migration/finish/deliver.h"
#include "migrate-agent/migration/finish/destination.h"
#include "migrate-agent/migration/finish/records.h"
#include "migrate-agent/migration/finish/source.h"
#include "src/base/log.h"

namespace gcr::finish {
namespace {

using asio::awaitable;
using commit::DestinationEvent;
using commit::DestinationLog;
using commit::DestinationState;
using commit::SourceEvent;
using commit::SourceLog;
using commit::SourceState;
using worker::Decision;
using worker::on_io;
using worker::RecoveryContext;

constexpr const char* kDiscarded = "an operator discarded the copy here";

void answer(RecoveryContext& context, Decision decision, const Status& status) {
  on_io(context.io,
        [&status, decision = std::move(decision)]() mutable { decision.answer(status); });
}

/// Applies an operator's decision at the source.
Status apply_decision(RecoveryContext& context, SourceLog& log, const Decision& decision) {
  journal::Record record = resolved(decision.run_here, decision.by);
  if (decision.run_here) {
    return undo(log, context.config, SourceEvent::kResolvedRunHere, std::move(record));
  }
  GCR_TRY(log.advance(SourceEvent::kResolvedDiscardHere, std::move(record)));
  return end_copy(log, context.config, kDiscarded);
}

/// Completes the commit: waits until the destination confirms it or an operator decides.
Status finish_commit(RecoveryContext& context, SourceLog& log) {
  using asio::experimental::awaitable_operators::operator||;
  Backoff backoff(context.io);
  for (;;) {
    auto next = on_io(context.io, deliver_commit(context, log.journal(), backoff) ||
                                      context.line.next_decision());
    if (const auto* confirmed = std::get_if<0>(&next)) {
      GCR_TRY(*confirmed);
      return settle(log, context.config, **confirmed);
    }
    Decision& decision = std::get<1>(next);
    const Status applied = apply_decision(context, log, decision);
    answer(context, std::move(decision), applied);
    if (log.state() != SourceState::kCommitted) return applied;
  }
}

/// Whether the host was restarted while the source waited for the vote. The source's copy is gone,
/// so the destination's copy, if it has voted, is the only one.
bool only_the_vote_is_left(const SourceLog& log) {
  const journal::Began& began = log.journal().began();
  return log.state() == SourceState::kAwaiting && host_was_restarted(began) && !began.loads() &&
         !takes_checkpoint(began);
}

/// Asks the destination whether it has voted, until it answers or an operator cancels.
Result<bool> has_voted(RecoveryContext& context, const journal::Journal& journal) {
  GCR_ASSIGN(const auto destination, context.other_agent(journal.began()));
  for (Backoff backoff(context.io); context.cancellation.check();) {
    const auto vote =
        on_io(context.io, ask_outcome(destination, journal.migration(), Asked::kVote));
    if (!vote) {
      spdlog::warn("cannot ask the destination for its vote, trying again: {}",
                   vote.error().message());
    }
    if (vote && *vote == proto::OutcomeReply::VOTED) return true;
    if (vote && *vote != proto::OutcomeReply::UNDECIDED) return false;
    on_io(context.io, backoff.wait());
  }
  return false;
}

Status recover(RecoveryContext& context, SourceLog& log) {
  spdlog::info("recovering the migration at the source");
  GCR_TRY(fault::point("source.recovery.begun"));
  if (only_the_vote_is_left(log)) {
    GCR_ASSIGN(const bool voted, has_voted(context, log.journal()));
    journal::Record record;
    record.mutable_committed();
    if (voted) GCR_TRY(log.advance(SourceEvent::kVoteReceived, std::move(record)));
  }
  if (log.state() == SourceState::kCommitted) return finish_commit(context, log);
  if (log.state() == SourceState::kDiscarded) return end_copy(log, context.config, kDiscarded);
  if (log.state() == SourceState::kSuspended) return stay_suspended(log, context.config);
  if (log.state() == SourceState::kResuming) return run_again(log, context.config);
  const Error cause(Code::kInternal, "the source's worker died before the migration committed");
  return undo(log, context.config, SourceEvent::kRestarted, aborted(cause));
}

/// Asks the source's agent for the outcome until it is known. True: committed; false: aborted.
awaitable<Result<bool>> ask_source(RecoveryContext& context, const journal::Journal& journal) {
  const auto source = context.other_agent(journal.began());
  GCR_CO_TRY(source);
  Backoff backoff(context.io);
  for (;;) {
    const auto outcome = co_await ask_outcome(*source, journal.migration(), Asked::kOutcome);
    if (outcome) GCR_CO_TRY(fault::point("destination.recovery.asked"));
    if (outcome && *outcome == proto::OutcomeReply::COMMITTED) co_return true;
    if (outcome && *outcome == proto::OutcomeReply::ABORTED) co_return false;
    const bool unknown = outcome && *outcome == proto::OutcomeReply::UNKNOWN;
    const bool is_another = !outcome && outcome.error().code() == Code::kPermissionDenied;
    context.line.set_operator_needed(unknown || is_another);
    if (!outcome) {
      spdlog::warn("cannot ask the source for the outcome, trying again: {}",
                   outcome.error().message());
    } else if (unknown) {
      spdlog::error(
          "the source's agent has no journal of this migration, so its outcome is unknown: "
          "an operator has to decide it (`gcr-migrate resolve`)");
    }
    co_await backoff.wait();
  }
}

/// Claims the restored processes. They may run already and be in a migration to another host, which
/// has stopped them: then they must not be continued here. A copy that has arrived suspended is not
/// continued, so it needs no claim.
Status claim(RecoveryContext& context, const DestinationLog& log) {
  const journal::Journal& journal = log.journal();
  if (!journal.began().suspends().empty()) return {};
  Backoff backoff(context.io);
  for (;;) {
    const Status claimed = on_io(
        context.io, context.daemon.claim_processes(journal.migration(), copy_of(log).members(),
                                                   journal.began().ordered_by()));
    if (claimed || claimed.error().code() != Code::kRefused) return claimed;
    on_io(context.io, backoff.wait());
  }
}

Status run_copy(RecoveryContext& context, DestinationLog& log, DestinationEvent event,
                journal::Record record) {
  GCR_TRY(claim(context, log));
  const cgroups::Group group = group_of(log.journal());
  GCR_ASSIGN(const std::string ended,
             release_copy(log, context.config, group, event, std::move(record)));
  if (log.state() == DestinationState::kAborted) {
    return destroy_copy(log, group, DestinationEvent::kCopyLost, {});
  }
  return finish_running(log, ended);
}

/// Removes the migration from this host.
Status remove_migration(DestinationLog& log, DestinationEvent why, journal::Record record) {
  return destroy_copy(log, group_of(log.journal()), why, std::move(record));
}

/// Applies the outcome that the source's agent reported.
Status apply_outcome(RecoveryContext& context, DestinationLog& log, bool committed) {
  journal::Record record;
  record.mutable_committed();
  if (committed) return run_copy(context, log, DestinationEvent::kToldCommit, std::move(record));
  return remove_migration(log, DestinationEvent::kToldAbort,
                          aborted(Error(Code::kCancelled, "the source aborted the migration")));
}

/// Applies a decision: an operator's, or the source's if its agent connected to report it.
Status apply_decision(RecoveryContext& context, DestinationLog& log, const Decision& decision) {
  if (decision.by_source) return apply_outcome(context, log, decision.run_here);
  journal::Record record = resolved(decision.run_here, decision.by);
  if (!decision.run_here) {
    return remove_migration(log, DestinationEvent::kResolvedDiscardHere, std::move(record));
  }
  GCR_TRY(undo::find_restored(copy_of(log)));
  return run_copy(context, log, DestinationEvent::kResolvedRunHere, std::move(record));
}

/// In restored: waits until the source's agent or an operator decides, and applies that.
Status await_decision(RecoveryContext& context, DestinationLog& log) {
  using asio::experimental::awaitable_operators::operator||;
  const cgroups::Group group = group_of(log.journal());
  if (!host_was_restarted(log.journal().began()) && group.exists()) GCR_TRY(group.freeze());
  for (;;) {
    GCR_ASSIGN(const bool lost, abort_if_lost(log));
    if (lost) return destroy_copy(log, group, DestinationEvent::kCopyLost, {});
    auto next =
        on_io(context.io, ask_source(context, log.journal()) || context.line.next_decision());
    if (const auto* outcome = std::get_if<0>(&next)) {
      GCR_TRY(*outcome);
      return apply_outcome(context, log, **outcome);
    }
    Decision& decision = std::get<1>(next);
    const Status applied = apply_decision(context, log, decision);
    answer(context, std::move(decision), applied);
    const bool refused = !applied && applied.error().code() == Code::kNotFound;
    if (!refused || log.state() != DestinationState::kRestored) return applied;
  }
}

Status recover(RecoveryContext& context, DestinationLog& log) {
  spdlog::info("recovering the migration at the destination");
  GCR_TRY(fault::point("destination.recovery.begun"));
  if (log.state() == DestinationState::kRestored) return await_decision(context, log);
  if (log.state() != DestinationState::kCommitted) {
    const Error cause(Code::kInternal, "the destination's worker died before it voted");
    return remove_migration(log, DestinationEvent::kRestarted, aborted(cause));
  }
  if (!host_was_restarted(log.journal().began())) return apply_outcome(context, log, true);
  // Whether the copy ran is unknown: the source's copy may be the only one left.
  const Error cause(Code::kDataLoss, "the restored process ended with the host");
  return remove_migration(log, DestinationEvent::kHostLost, aborted(cause));
}

/// Opens the source's journal. Waits until no migration moves the job, if it is a suspended one.
Result<SourceLog> open_source(RecoveryContext& context, const std::filesystem::path& path) {
  Backoff backoff(context.io);
  for (;;) {
    {
      GCR_ASSIGN(SourceLog log, SourceLog::open(path, journal::Lock::kWait));
      if (log.state() != SourceState::kSuspended) return log;
      GCR_ASSIGN(const auto migration, migration_of_suspended(log.journal()));
      if (!migration) return log;
    }
    on_io(context.io, backoff.wait());
  }
}

template <class Log>
Status recover(RecoveryContext& context, Result<Log> log) {
  GCR_TRY(log);
  const journal::Journal& journal = log->journal();
  if (!journal::unfinished(journal.records())) return {};
  GCR_TRY(
      on_io(context.io, [&] { return context.line.open(journal.migration(), journal.role()); }));
  return recover(context, *log);
}

}  // namespace
}  // namespace gcr::finish

namespace gcr::migration {

asio::awaitable<Status> run_recovery(worker::RecoveryContext& context, std::filesystem::path path) {
  co_return co_await worker::offload(context.blocking, [&] {
    const bool source = path.filename().string().ends_with("-source");
    using finish::recover;
    return source ? recover(context, finish::open_source(context, path))
                  : recover(context, commit::DestinationLog::open(path, journal::Lock::kWait));
  });
}

}  // namespace gcr::migration
