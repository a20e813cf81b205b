#include "migrate-agent/migration/finish/deliver.h"

#include <algorithm>
#include <asio/use_awaitable.hpp>

#include "migrate-agent/migration/finish/checkpoints.h"
#include "src/base/log.h"

namespace gcr::finish {

using asio::awaitable;

awaitable<void> Backoff::wait() {
  timer_.expires_after(pause_);
  pause_ = std::min(2 * pause_, longest_);
  co_await timer_.async_wait(asio::use_awaitable);
}

namespace {

/// Publishes the checkpoint in a store, and repeats this until it succeeds or the files are gone.
/// Disks and shared directories may be unavailable for a while.
awaitable<Result<commit::CommitAnswer>> deliver_to_store(
    worker::RecoveryContext& context, const journal::Journal& journal, Backoff& backoff,
    std::chrono::steady_clock::time_point until) {
  for (;;) {
    const Status published = publish_checkpoint(journal);
    if (published) co_return commit::CommitAnswer(proto::CommitReply());
    if (published.error().code() == Code::kNotFound) {
      co_return commit::CommitAnswer(published.error());
    }
    if (std::chrono::steady_clock::now() > until) co_return published.error();
    context.line.set_operator_needed(published.error().code() == Code::kPermissionDenied);
    spdlog::warn("cannot publish the checkpoint yet, trying again: {}",
                 published.error().message());
    co_await backoff.wait();
  }
}

}  // namespace

awaitable<Result<commit::CommitAnswer>> deliver_commit(
    worker::RecoveryContext& context, const journal::Journal& journal, Backoff& backoff,
    std::chrono::steady_clock::time_point until) {
  if (takes_checkpoint(journal.began())) {
    co_return co_await deliver_to_store(context, journal, backoff, until);
  }
  const auto destination = context.other_agent(journal.began());
  GCR_CO_TRY(destination);
  proto::Envelope request;
  request.mutable_commit_request()->set_migration_id(to_bytes(journal.migration()));
  for (;;) {
    auto reply = co_await control::ask_for_reply(*destination, journal.migration(), request);
    if (reply) co_return commit::answer_of(*reply);
    if (std::chrono::steady_clock::now() > until) co_return reply.error();
    const Code code = reply.error().code();
    context.line.set_operator_needed(code == Code::kNotFound || code == Code::kRefused ||
                                     code == Code::kPermissionDenied);
    spdlog::warn("the destination has not confirmed the commit yet, asking again: {}",
                 reply.error().message());
    co_await backoff.wait();
  }
}

awaitable<Result<proto::OutcomeReply::Outcome>> ask_outcome(const control::AgentAddress& other,
                                                            const Uuid& migration, Asked what) {
  proto::Envelope request;
  request.mutable_outcome_request()->set_migration_id(to_bytes(migration));
  request.mutable_outcome_request()->set_of_vote(what == Asked::kVote);
  const auto reply = co_await control::ask_for_reply(other, migration, request);
  GCR_CO_TRY(reply);
  co_return reply->outcome_reply().outcome();
}

}  // namespace gcr::finish
