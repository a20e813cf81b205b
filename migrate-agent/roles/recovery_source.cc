// Recovery of a migration away from this host when its worker has died: it is undone before the
// commit, finished after it. Only the journal's decision counts; how far the process was taken
// apart is read from the process itself (migrate-agent/recovery).
#include <fmt/format.h>

#include <asio/experimental/awaitable_operators.hpp>

#include "migrate-agent/fault/fault.h"
#include "migrate-agent/keeper/keeper.h"
#include "migrate-agent/recovery/recovery.h"
#include "migrate-agent/roles/outcome.h"
#include "migrate-agent/roles/recovery_roles.h"
#include "migrate-agent/worker/other_agent.h"
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
  awaitable<Result<proto::Envelope>> confirm();
  awaitable<Status> obey(const Decision& decision);
  recovery::Lost lost() const;
  std::optional<journal::ProcessId> keeper() const;
  Status undo();
  Status finish(const proto::Envelope& answer);
  Status end_process(const std::string& text);
  Status clear_helpers();
  const journal::Began& began() const { return log_.journal().began(); }

  RecoveryContext& context_;
  commit::SourceLog log_;
};

awaitable<Status> SourceRecovery::run() {
  spdlog::info("recovering the source");
  GCR_CO_TRY(fault::point("source.recovery.begun"));
  if (log_.state() == SourceState::kCommitted) co_return co_await finish_commit();
  co_return co_await offload(context_.blocking, [&]() -> Status {
    if (log_.state() == SourceState::kDiscarded) return end_process(kDiscarded);
    if (log_.state() != SourceState::kAborted) {
      const Error cause(Code::kInternal, "the agent at the source died on the way");
      GCR_TRY(log_.advance(SourceEvent::kRestarted, aborted(cause)));
    }
    return undo();
  });
}

/// What the journal knows of the process.
recovery::Lost SourceRecovery::lost() const {
  const journal::Record* detaching = log_.journal().last(journal::Record::kDetaching);
  return {.members = {began().members().begin(), began().members().end()},
          .keeper = keeper(),
          .detaching = detaching != nullptr,
          .scratch = scratch_of(context_.config, log_.journal()),
          .group = group_of(log_.journal()),
          .home = detaching == nullptr || detaching->detaching().homes().empty()
                      ? ""
                      : detaching->detaching().homes(0)};
}

std::optional<journal::ProcessId> SourceRecovery::keeper() const {
  const journal::Record* started = log_.journal().last(journal::Record::kKeeperStarted);
  if (started == nullptr || host_was_restarted(began())) return std::nullopt;
  return started->keeper_started().keeper();
}

/// Ends the dead worker's keeper and removes its scratch directory.
Status SourceRecovery::clear_helpers() {
  if (const auto id = keeper()) GCR_TRY(keeper::end_keeper(*id));
  remove_scratch(context_.config, log_.journal());
  return {};
}

/// Brings the process back, from whatever state it was left in.
Status SourceRecovery::undo() {
  std::string text = "the process runs here";
  if (host_was_restarted(began())) {
    text = "the process ended with the host";
  } else {
    GCR_ASSIGN(const recovery::Found found, recovery::bring_back(lost()));
    if (found == recovery::Found::kGone) text = "the process has ended";
  }
  GCR_TRY(fault::point("source.recovery.resumed"));
  GCR_TRY(clear_helpers());
  return log_.advance(SourceEvent::kRolledBack, finished(text));
}

/// The destination runs the process, or an operator decided so: kills the stopped copy.
Status SourceRecovery::end_process(const std::string& text) {
  if (!host_was_restarted(began()))
    GCR_TRY(recovery::end_stopped({began().members().begin(), began().members().end()},
                                  group_of(log_.journal())));
  GCR_TRY(clear_helpers());
  const bool discarded = log_.state() == SourceState::kDiscarded;
  return log_.advance(discarded ? SourceEvent::kCleared : SourceEvent::kCommitConfirmed,
                      finished(text));
}

/// Until the destination confirms, or an operator decides. Nothing else ends this.
awaitable<Status> SourceRecovery::finish_commit() {
  using asio::experimental::awaitable_operators::operator||;
  for (;;) {
    auto next = co_await (confirm() || context_.line.next_decision());
    if (const auto* answer = std::get_if<0>(&next)) {
      GCR_CO_TRY(*answer);
      co_return co_await offload(context_.blocking, [&] { return finish(**answer); });
    }
    auto& decision = std::get<1>(next);
    const Status obeyed = co_await obey(decision);
    decision.answer(obeyed);
    if (obeyed) co_return obeyed;
  }
}

/// Handles the destination's answer to the commit.
Status SourceRecovery::finish(const proto::Envelope& answer) {
  if (answer.has_commit_reply()) {
    return end_process(
        fmt::format("process {} runs at {}", answer.commit_reply().pid(), began().peer()));
  }
  GCR_TRY(log_.advance(SourceEvent::kCopyLost, aborted(copy_lost(answer.copy_lost()))));
  return undo();
}

/// Repeats the question until the destination has answered.
awaitable<Result<proto::Envelope>> SourceRecovery::confirm() {
  const auto destination = other_agent(began(), context_.config, context_.tls);
  GCR_CO_TRY(destination);
  Backoff backoff(context_.io);
  for (;;) {
    auto reply = co_await deliver_commit(*destination, log_.journal().migration());
    if (reply) co_return reply;
    const Code code = reply.error().code();
    context_.line.set_operator_needed(code == Code::kNotFound || code == Code::kRefused ||
                                      code == Code::kPermissionDenied);
    spdlog::warn("the commit is not confirmed: {}", reply.error().message());
    co_await backoff.wait();
  }
}

/// Carries out an operator's decision.
awaitable<Status> SourceRecovery::obey(const Decision& decision) {
  journal::Record record;
  record.mutable_resolved()->set_run_here(decision.run_here);
  record.mutable_resolved()->set_operator_name(decision.by);
  const bool run_here = decision.run_here;
  co_return co_await offload(context_.blocking, [&]() -> Status {
    GCR_TRY(log_.advance(
        run_here ? SourceEvent::kResolvedRunHere : SourceEvent::kResolvedDiscardHere, record));
    return run_here ? undo() : end_process(kDiscarded);
  });
}

}  // namespace

awaitable<Status> recover_source(RecoveryContext& context, commit::SourceLog log) {
  SourceRecovery recovery(context, std::move(log));
  co_return co_await recovery.run();
}

}  // namespace gcr::agent
