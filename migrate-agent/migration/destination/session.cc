// The destination's end of the control channel: receives requests and sends replies, with
// heartbeats while a step runs.
#include <spdlog/spdlog.h>

#include "migrate-agent/migration/destination/course.h"
#include "migrate-agent/migration/entry.h"
#include "migrate-agent/migration/target/agent/peer_link.h"

namespace gcr::migration {
namespace {

using asio::awaitable;
using destination::Course;

/// Takes one step, and sends Alive until it is done: a restore may take long.
awaitable<proto::Envelope> answer(worker::WorkerContext& context, Course& course,
                                  const proto::Envelope& request) {
  AliveBeat beat(context.io, context.channel, context.config.peer_silence(), context.cancellation);
  auto reply = co_await worker::offload(context.blocking, [&] { return course.answer(request); });
  co_await beat.stop();
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
  std::optional<registry::Outcome> outcome;
  const Status concluded = co_await worker::offload(context.blocking, [&]() -> Status {
    outcome = course.conclude();
    return {};
  });
  if (!concluded) {
    spdlog::error("cannot conclude the migration on this host: {}", concluded.error().message());
  }
  if (outcome) context.daemon.report_outcome(std::move(*outcome));
}

}  // namespace gcr::migration
