// Recovery of a migration away from this host when its worker has died: it is undone before the
// commit, finished after it. Only the journal's decision counts; how far the process was taken
// apart is read from the process itself (migrate-agent/settlement, migrate-agent/recovery).
#include <asio/experimental/awaitable_operators.hpp>

#include "migrate-agent/fault/fault.h"
#include "migrate-agent/roles/recovery_roles.h"
#include "migrate-agent/settlement/deliver.h"
#include "migrate-agent/settlement/records.h"
#include "migrate-agent/settlement/source.h"
#include "src/base/log.h"

namespace gcr::agent {
namespace {

using asio::awaitable;
using commit::SourceEvent;
using commit::SourceState;

constexpr const char* kDiscarded = "an operator discarded the copy here";

class SourceRecovery {
 public:
  SourceRecovery(RecoveryContext& context, commit::SourceLog log)
      : context_(context), log_(std::move(log)) {}

  awaitable<Status> run();

 private:
  awaitable<Status> finish_commit();
  Status obey(const Decision& decision);

  RecoveryContext& context_;
  commit::SourceLog log_;
};

awaitable<Status> SourceRecovery::run() {
  spdlog::info("recovering the source");
  GCR_CO_TRY(fault::point("source.recovery.begun"));
  if (log_.state() == SourceState::kCommitted) co_return co_await finish_commit();
  co_return co_await offload(context_.blocking, [&]() -> Status {
    if (log_.state() == SourceState::kDiscarded) {
      return settlement::end_copy(log_, context_.config, kDiscarded);
    }
    const Error cause(Code::kInternal, "the agent at the source died on the way");
    return settlement::undo(log_, context_.config, SourceEvent::kRestarted,
                            settlement::aborted(cause));
  });
}

/// Until the destination confirms, or an operator decides. Nothing else ends this.
awaitable<Status> SourceRecovery::finish_commit() {
  using asio::experimental::awaitable_operators::operator||;
  settlement::Backoff backoff(context_.io);
  for (;;) {
    auto next = co_await (settlement::deliver_commit(context_, log_.journal(), backoff) ||
                          context_.line.next_decision());
    if (const auto* answer = std::get_if<0>(&next)) {
      GCR_CO_TRY(*answer);
      co_return co_await offload(
          context_.blocking, [&] { return settlement::settle(log_, context_.config, **answer); });
    }
    auto& decision = std::get<1>(next);
    const Status obeyed = co_await offload(context_.blocking, [&] { return obey(decision); });
    decision.answer(obeyed);
    if (log_.state() != SourceState::kCommitted) co_return obeyed;
  }
}

/// Carries out an operator's decision.
Status SourceRecovery::obey(const Decision& decision) {
  journal::Record record = settlement::resolved(decision.run_here, decision.by);
  if (decision.run_here) {
    return settlement::undo(log_, context_.config, SourceEvent::kResolvedRunHere,
                            std::move(record));
  }
  GCR_TRY(log_.advance(SourceEvent::kResolvedDiscardHere, std::move(record)));
  return settlement::end_copy(log_, context_.config, kDiscarded);
}

}  // namespace

awaitable<Status> recover_source(RecoveryContext& context, commit::SourceLog log) {
  SourceRecovery recovery(context, std::move(log));
  co_return co_await recovery.run();
}

}  // namespace gcr::agent
