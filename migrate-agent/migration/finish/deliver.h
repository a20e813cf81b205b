// Requests between the two agents after the migration's connection was lost, each on a new one
// (proto/PROTOCOL.md, "After the connection is lost"), on the thread that runs the io_context.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>

#include "migrate-agent/commit/journal/journal.h"
#include "migrate-agent/commit/states/outcome.h"
#include "migrate-agent/worker/runtime/context.h"
#include "src/control/ask.h"

namespace gcr::finish {

/// Pauses between attempts, each twice as long as the one before, up to `longest`.
class Backoff {
 public:
  explicit Backoff(asio::io_context& io,
                   std::chrono::milliseconds longest = std::chrono::seconds(5))
      : timer_(io), longest_(longest) {}
  asio::awaitable<void> wait();

 private:
  asio::steady_timer timer_;
  std::chrono::milliseconds longest_;
  std::chrono::milliseconds pause_{100};
};

/// Tells the destination that the migration is committed, and repeats this until the destination
/// answers with CommitReply or CopyLost. Meanwhile `status` shows whether an operator is needed.
/// The first failure after `until` is returned. kUnavailable, kTimeout: the destination was not
/// reached; kNotFound: it has no journal of the migration; kRefused: it has discarded its copy,
/// which may have run; kPermissionDenied: another agent answered.
asio::awaitable<Result<commit::CommitAnswer>> deliver_commit(
    worker::RecoveryContext& context, const journal::Journal& journal, Backoff& backoff,
    std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max());

enum class Asked : bool { kOutcome, kVote };

/// Asks the source for the outcome, or the destination for its vote, once. kUnavailable, kTimeout:
/// the agent was not reached, so try again; kPermissionDenied: another agent answered.
asio::awaitable<Result<proto::OutcomeReply::Outcome>> ask_outcome(
    const control::AgentAddress& other, const Uuid& migration, Asked what);

}  // namespace gcr::finish
