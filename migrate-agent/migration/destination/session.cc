// The destination's end of the control channel: requests, replies, and heartbeats meanwhile.
#include <spdlog/spdlog.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/redirect_error.hpp>

#include "migrate-agent/migration/destination/course.h"
#include "migrate-agent/migration/entry.h"
#include "migrate-agent/migration/target/agent/peer_link.h"

namespace gcr::migration {
namespace {

using asio::awaitable;
using destination::Course;

/// Sends Alive at intervals, from run() until stop() has been awaited. Nothing else may send
/// meanwhile. If the source is gone, it requests the worker's cancellation.
class AliveBeat : public std::enable_shared_from_this<AliveBeat> {
 public:
  explicit AliveBeat(worker::WorkerContext& context)
      : context_(context), pulse_(context.io), ended_(context.io, 1) {}

  awaitable<void> run() {
    const auto self = shared_from_this();
    proto::Envelope alive;
    alive.mutable_alive();
    while (!stopping_) {
      pulse_.expires_after(context_.config.peer_silence() / kBeatsPerSilence);
      std::error_code ignored;  // stop() cancels the wait
      co_await pulse_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      if (stopping_) break;
      const Status sent = co_await context_.channel.send(alive);
      if (sent) continue;
      context_.cancellation.request(sent.error().while_doing("the source was lost"));
      break;  // sending the reply fails too
    }
    ended_.try_send(std::error_code(), true);
  }

  awaitable<void> stop() {
    stopping_ = true;
    pulse_.cancel();
    co_await ended_.async_receive(asio::use_awaitable);
  }

 private:
  worker::WorkerContext& context_;
  asio::steady_timer pulse_;
  Token ended_;  ///< for stop()
  bool stopping_ = false;
};

/// Takes one step, and sends Alive until it is done: a restore may take long.
awaitable<proto::Envelope> answer(worker::WorkerContext& context, Course& course,
                                  const proto::Envelope& request) {
  const auto beat = std::make_shared<AliveBeat>(context);
  asio::co_spawn(context.io, beat->run(), asio::detached);
  auto reply = co_await worker::offload(context.blocking, [&] { return course.answer(request); });
  co_await beat->stop();
  if (reply) co_return std::move(*reply);
  spdlog::error("the migration to this host failed: {}", reply.error().message());
  course.fail(reply.error());
  proto::Envelope failure;
  *failure.mutable_failure() = control::to_failure(reply.error());
  co_return failure;
}

awaitable<void> serve(worker::WorkerContext& context, Course& course, proto::Envelope request) {
  for (;;) {
    const Status sent = co_await context.channel.send(co_await answer(context, course, request));
    if (!sent) spdlog::warn("cannot send the reply to the source: {}", sent.error().message());
    if (course.ended()) co_return;
    auto next = co_await context.channel.receive(context.config.peer_silence());
    if (!next) {
      const Error lost = next.error().while_doing("the source was lost");
      spdlog::info("{}", lost.message());
      co_return course.fail(lost);
    }
    request = std::move(*next);
  }
}

}  // namespace

awaitable<void> run_destination(worker::WorkerContext& context, proto::PreflightRequest request) {
  proto::Envelope first;
  *first.mutable_preflight_request() = std::move(request);
  Course course(context);
  co_await serve(context, course, std::move(first));
  auto outcome = co_await worker::offload(
      context.blocking,
      [&]() -> Result<std::optional<registry::Outcome>> { return course.conclude(); });
  if (!outcome) {
    spdlog::error("cannot conclude the migration on this host: {}", outcome.error().message());
  } else if (*outcome) {
    context.daemon.report_outcome(std::move(**outcome));
  }
}

}  // namespace gcr::migration
