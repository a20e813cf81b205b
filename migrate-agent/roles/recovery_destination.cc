// Recovery of a migration to this host when its worker has died, or has lost its source after the
// vote. Before the vote everything is cleaned up; after it the process stays frozen until the
// source's agent, or an operator, says what became of the migration.
#include <fmt/format.h>

#include <asio/experimental/awaitable_operators.hpp>
#include <optional>

#include "migrate-agent/fault/fault.h"
#include "migrate-agent/recovery/recovery.h"
#include "migrate-agent/roles/lost_copy.h"
#include "migrate-agent/roles/outcome.h"
#include "migrate-agent/roles/recovery_roles.h"
#include "migrate-agent/worker/other_agent.h"
#include "src/base/log.h"

namespace gcr::agent {
namespace {

using asio::awaitable;
using commit::DestinationEvent;
using commit::DestinationState;

class DestinationRecovery {
 public:
  DestinationRecovery(RecoveryContext& context, commit::DestinationLog log)
      : context_(context), log_(std::move(log)), group_(group_of(log_.journal())) {}

  awaitable<Status> run();

 private:
  awaitable<Status> decide();
  awaitable<Status> settle();
  awaitable<Result<bool>> ask_source();
  awaitable<Status> obey(const Decision& decision);
  Status follow(bool committed);
  Status follow_operator(const Decision& decision);
  Status give_up(commit::DestinationEvent event, Code code, std::string why);
  awaitable<Status> claim();
  Status resume();
  Status clear();
  const journal::Began& began() const { return log_.journal().began(); }
  const journal::Restored* restored() const {
    const journal::Record* vote = log_.journal().last(journal::Record::kRestored);
    return vote == nullptr ? nullptr : &vote->restored();
  }

  RecoveryContext& context_;
  commit::DestinationLog log_;
  cgroups::Group group_;
  std::optional<Decision> obeyed_;  ///< to be answered when everything is done
  bool committed_here_ = false;     ///< by this process: the copy has not run before
};

awaitable<Status> DestinationRecovery::run() {
  spdlog::info("recovering the destination");
  GCR_CO_TRY(fault::point("destination.recovery.begun"));
  GCR_CO_TRY(co_await decide());
  const bool committed = log_.state() == DestinationState::kCommitted;
  if (committed) GCR_CO_TRY(co_await claim());
  const Status done =
      co_await offload(context_.blocking, [&] { return committed ? resume() : clear(); });
  if (obeyed_) obeyed_->answer(done);
  co_return done;
}

/// Afterwards the journal is committed or aborted, or further.
awaitable<Status> DestinationRecovery::decide() {
  if (log_.state() == DestinationState::kRestored) {
    if (!host_was_restarted(began())) {
      GCR_CO_TRY(co_await offload(context_.blocking, [&]() -> Status {
        return group_.exists() ? group_.freeze() : Status();
      }));
    }
    co_return co_await settle();
  }
  co_return co_await offload(context_.blocking, [&]() -> Status {
    // Nobody knows whether it ran: the source's copy may be the only one left.
    if (log_.state() == DestinationState::kCommitted && host_was_restarted(began())) {
      return give_up(DestinationEvent::kHostLost, Code::kDataLoss,
                     "the restored process ended with the host");
    }
    if (log_.state() != DestinationState::kBuilding) return {};
    return give_up(DestinationEvent::kRestarted, Code::kInternal,
                   "the agent at the destination died on the way");
  });
}

/// True: committed; false: given up. Until the source's agent says either.
awaitable<Result<bool>> DestinationRecovery::ask_source() {
  const auto source = other_agent(began(), context_.config, context_.tls);
  GCR_CO_TRY(source);
  Backoff backoff(context_.io);
  for (;;) {
    const auto outcome = co_await ask_outcome(*source, log_.journal().migration());
    if (outcome) GCR_CO_TRY(fault::point("destination.recovery.asked"));
    if (outcome && *outcome == proto::OutcomeReply::COMMITTED) co_return true;
    if (outcome && *outcome == proto::OutcomeReply::ABORTED) co_return false;
    const bool unknown = outcome && *outcome == proto::OutcomeReply::UNKNOWN;
    const bool is_another = !outcome && outcome.error().code() == Code::kPermissionDenied;
    context_.line.set_operator_needed(unknown || is_another);
    if (!outcome) {
      spdlog::warn("the outcome is not known: {}", outcome.error().message());
    } else if (unknown) {
      spdlog::error("the source's agent has no journal of it; `gcr-migrate resolve`");
    }
    co_await backoff.wait();
  }
}

awaitable<Status> DestinationRecovery::settle() {
  using asio::experimental::awaitable_operators::operator||;
  for (;;) {
    const Result<bool> lost =
        co_await offload(context_.blocking, [&] { return give_up_lost_copy(log_); });
    GCR_CO_TRY(lost);
    if (*lost) co_return Status();
    auto next = co_await (ask_source() || context_.line.next_decision());
    if (const auto* answer = std::get_if<0>(&next)) {
      GCR_CO_TRY(*answer);
      co_return co_await offload(context_.blocking, [&] { return follow(**answer); });
    }
    Decision& decision = std::get<1>(next);
    const Status obeyed = co_await obey(decision);
    if (obeyed) {
      obeyed_ = std::move(decision);
      co_return obeyed;
    }
    decision.answer(obeyed);
  }
}

/// The decision of the source's agent, on a connection of its own, or of an operator.
awaitable<Status> DestinationRecovery::obey(const Decision& decision) {
  co_return co_await offload(context_.blocking, [&] {
    return decision.by_source ? follow(decision.run_here) : follow_operator(decision);
  });
}

Status DestinationRecovery::follow(bool committed) {
  if (!committed) {
    return give_up(DestinationEvent::kToldAbort, Code::kCancelled, "the source aborted it");
  }
  GCR_ASSIGN(const bool lost, give_up_lost_copy(log_));
  if (lost) return {};
  journal::Record record;
  record.mutable_committed();
  committed_here_ = true;
  return log_.advance(DestinationEvent::kToldCommit, std::move(record));
}

Status DestinationRecovery::follow_operator(const Decision& decision) {
  if (decision.run_here) {
    GCR_TRY(recovery::find_restored(*restored()));
  }
  journal::Record record;
  record.mutable_resolved()->set_run_here(decision.run_here);
  committed_here_ = decision.run_here;
  record.mutable_resolved()->set_operator_name(decision.by);
  return log_.advance(decision.run_here ? DestinationEvent::kResolvedRunHere
                                        : DestinationEvent::kResolvedDiscardHere,
                      std::move(record));
}

Status DestinationRecovery::give_up(DestinationEvent event, Code code, std::string why) {
  return log_.advance(event, aborted(Error(code, std::move(why))));
}

/// The process may run already, and be in a migration to another host: it must not be continued
/// while it is stopped for that.
awaitable<Status> DestinationRecovery::claim() {
  Backoff backoff(context_.io);
  for (;;) {
    const Status claimed = co_await context_.daemon.claim_processes(
        log_.journal().migration(), restored()->members(), began().ordered_by());
    if (claimed || claimed.error().code() != Code::kRefused) co_return claimed;
    co_await backoff.wait();
  }
}

Status DestinationRecovery::resume() {
  if (committed_here_) {
    GCR_ASSIGN(const bool lost, give_up_lost_copy(log_));
    if (lost) return clear();
  }
  const Status resumed = recovery::resume_restored(*restored(), group_);
  // Committed is committed: a process that has ended by now has ended here.
  if (!resumed && resumed.error().code() != Code::kNotFound) return resumed;
  return log_.advance(DestinationEvent::kResumed,
                      resumed
                          ? finished("the process runs", journal::root_pid(restored()->members()))
                          : finished("the process has ended here"));
}

/// Removes everything of the migration from this host.
Status DestinationRecovery::clear() {
  if (restored() != nullptr && !host_was_restarted(began())) {
    GCR_TRY(recovery::destroy_restored(*restored(), group_));
  }
  GCR_TRY(group_.destroy());
  return log_.advance(DestinationEvent::kCleared, finished("nothing is left"));
}

}  // namespace

awaitable<Status> recover_destination(RecoveryContext& context, commit::DestinationLog log) {
  DestinationRecovery recovery(context, std::move(log));
  co_return co_await recovery.run();
}

}  // namespace gcr::agent
