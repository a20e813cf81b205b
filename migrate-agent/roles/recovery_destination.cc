// Recovery of a migration to this host when its worker has died, or has lost its source after the
// vote. Before the vote everything is cleaned up; after it the process stays frozen until the
// source's agent, or an operator, says what became of the migration.
#include <asio/experimental/awaitable_operators.hpp>

#include "migrate-agent/fault/fault.h"
#include "migrate-agent/recovery/recovery.h"
#include "migrate-agent/roles/recovery_roles.h"
#include "migrate-agent/settlement/deliver.h"
#include "migrate-agent/settlement/destination.h"
#include "migrate-agent/settlement/records.h"
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
      : context_(context), log_(std::move(log)), group_(settlement::group_of(log_.journal())) {}

  awaitable<Status> run();

 private:
  awaitable<Status> await_decision();
  awaitable<Result<bool>> ask_source();
  awaitable<Status> told(bool committed);
  awaitable<Status> obey(const Decision& decision);
  awaitable<Status> claim();
  awaitable<Status> let_go(DestinationEvent told, journal::Record record);
  awaitable<Status> clear(DestinationEvent why, journal::Record record);
  const journal::Began& began() const { return log_.journal().began(); }
  const journal::Restored& restored() const {
    return log_.journal().last(journal::Record::kRestored)->restored();
  }

  RecoveryContext& context_;
  commit::DestinationLog log_;
  cgroups::Group group_;
};

awaitable<Status> DestinationRecovery::run() {
  spdlog::info("recovering the destination");
  GCR_CO_TRY(fault::point("destination.recovery.begun"));
  if (log_.state() == DestinationState::kRestored) co_return co_await await_decision();
  Error cause(Code::kInternal, "the agent at the destination died on the way");
  if (log_.state() != DestinationState::kCommitted) {
    co_return co_await clear(DestinationEvent::kRestarted, settlement::aborted(cause));
  }
  if (!settlement::host_was_restarted(began())) co_return co_await told(true);
  // Nobody knows whether it ran: the source's copy may be the only one left.
  cause = Error(Code::kDataLoss, "the restored process ended with the host");
  co_return co_await clear(DestinationEvent::kHostLost, settlement::aborted(cause));
}

/// True: committed; false: given up. Until the source's agent says either.
awaitable<Result<bool>> DestinationRecovery::ask_source() {
  const auto source = other_agent(began(), context_.config, context_.tls);
  GCR_CO_TRY(source);
  settlement::Backoff backoff(context_.io);
  for (;;) {
    const auto outcome = co_await settlement::ask_outcome(*source, log_.journal().migration());
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

/// In restored, until the source's agent or an operator decides.
awaitable<Status> DestinationRecovery::await_decision() {
  using asio::experimental::awaitable_operators::operator||;
  if (!settlement::host_was_restarted(began()) && group_.exists()) {
    GCR_CO_TRY(co_await offload(context_.blocking, [&] { return group_.freeze(); }));
  }
  for (;;) {
    const Result<bool> lost =
        co_await offload(context_.blocking, [&] { return settlement::give_up_lost_copy(log_); });
    GCR_CO_TRY(lost);
    if (*lost) co_return co_await clear(DestinationEvent::kCopyLost, journal::Record());
    auto next = co_await (ask_source() || context_.line.next_decision());
    if (const auto* answer = std::get_if<0>(&next)) {
      GCR_CO_TRY(*answer);
      co_return co_await told(**answer);
    }
    Decision& decision = std::get<1>(next);
    const Status obeyed = co_await obey(decision);
    decision.answer(obeyed);
    const bool refused = !obeyed && obeyed.error().code() == Code::kNotFound;
    if (!refused || log_.state() != DestinationState::kRestored) co_return obeyed;
  }
}

/// By the source's agent.
awaitable<Status> DestinationRecovery::told(bool committed) {
  journal::Record record;
  record.mutable_committed();
  if (committed) co_return co_await let_go(DestinationEvent::kToldCommit, std::move(record));
  record = settlement::aborted(Error(Code::kCancelled, "the source aborted it"));
  co_return co_await clear(DestinationEvent::kToldAbort, std::move(record));
}

/// The decision of the source's agent, on a connection of its own, or of an operator.
awaitable<Status> DestinationRecovery::obey(const Decision& decision) {
  if (decision.by_source) co_return co_await told(decision.run_here);
  journal::Record record = settlement::resolved(decision.run_here, decision.by);
  if (!decision.run_here) {
    co_return co_await clear(DestinationEvent::kResolvedDiscardHere, std::move(record));
  }
  GCR_CO_TRY(
      co_await offload(context_.blocking, [&] { return recovery::find_restored(restored()); }));
  co_return co_await let_go(DestinationEvent::kResolvedRunHere, std::move(record));
}

/// The process may run already, and be in a migration to another host: it must not be continued
/// while it is stopped for that.
awaitable<Status> DestinationRecovery::claim() {
  settlement::Backoff backoff(context_.io);
  for (;;) {
    const Status claimed = co_await context_.daemon.claim_processes(
        log_.journal().migration(), restored().members(), began().ordered_by());
    if (claimed || claimed.error().code() != Code::kRefused) co_return claimed;
    co_await backoff.wait();
  }
}

awaitable<Status> DestinationRecovery::let_go(DestinationEvent told, journal::Record record) {
  GCR_CO_TRY(co_await claim());
  GCR_CO_TRY(co_await offload(context_.blocking, [&] {
    return settlement::let_go(log_, group_, told, std::move(record));
  }));
  if (log_.state() == DestinationState::kAborted) {
    co_return co_await clear(DestinationEvent::kCopyLost, journal::Record());
  }
  co_return co_await offload(context_.blocking, [&] { return settlement::finish_running(log_); });
}

/// Removes everything of the migration from this host.
awaitable<Status> DestinationRecovery::clear(DestinationEvent why, journal::Record record) {
  co_return co_await offload(
      context_.blocking, [&] { return settlement::clear(log_, group_, why, std::move(record)); });
}

}  // namespace

awaitable<Status> recover_destination(RecoveryContext& context, commit::DestinationLog log) {
  DestinationRecovery recovery(context, std::move(log));
  co_return co_await recovery.run();
}

}  // namespace gcr::agent
