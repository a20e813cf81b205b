#include "migrate-agent/migration/target/agent/peer_link.h"

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>

#include "src/control/ask.h"

namespace gcr::migration {
namespace {

using asio::awaitable;
using control::ControlChannel;
using std::chrono::milliseconds;

/// Waits until the timer expires or is cancelled.
awaitable<void> wait(asio::steady_timer& timer) {
  std::error_code ignored;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

}  // namespace

PeerLink::PeerLink(asio::io_context& io, std::unique_ptr<ControlChannel> channel,
                   milliseconds silence)
    : channel_(std::move(channel)), silence_(silence), turn_(io, 1), pulse_(io) {
  turn_.try_send(std::error_code(), true);
}

awaitable<Result<proto::Envelope>> PeerLink::call(proto::Envelope request) {
  const auto self = shared_from_this();
  ++calls_;
  co_await turn_.async_receive(asio::use_awaitable);
  Result<proto::Envelope> answer;
  if (!lost_) answer = co_await channel_->call(request, silence_);
  if (!answer) lost_ = answer.error();
  if (lost_) answer = *lost_;
  turn_.try_send(std::error_code(), true);
  --calls_;
  co_return control::check_reply(request, std::move(answer), "the destination");
}

awaitable<void> PeerLink::beat(std::function<void(const Error&)> on_lost) {
  const auto self = shared_from_this();
  while (!closed_ && !lost_) {
    pulse_.expires_after(silence_ / kBeatsPerSilence);
    co_await wait(pulse_);
    if (closed_ || calls_ > 0) continue;  // the caller of call() gets the error
    proto::Envelope question;
    question.mutable_clock_request()->set_paused(paused_);
    const auto answer = co_await call(question);
    if (!answer && !closed_) co_return on_lost(answer.error());
  }
}

void PeerLink::watch(std::function<void(const Error&)> on_lost) {
  asio::co_spawn(pulse_.get_executor(), beat(std::move(on_lost)), asio::detached);
}

void PeerLink::set_paused(bool paused) {
  paused_ = paused;
  pulse_.cancel();
}

void PeerLink::abandon_call() {
  if (calls_ > 0) close();
}

void PeerLink::close() {
  closed_ = true;
  if (!lost_) lost_ = Error(Code::kCancelled, "this agent closed the connection");
  pulse_.cancel();
  channel_->close();
}

/// The state of AliveBeat, shared with the coroutine of beat().
struct AliveBeat::Impl : std::enable_shared_from_this<Impl> {
  Impl(asio::io_context& io, ControlChannel& line, milliseconds between,
       worker::Cancellation& cancel)
      : channel(line), interval(between), cancellation(cancel), pulse(io), ended(io, 1) {}

  awaitable<void> beat() {
    const auto self = shared_from_this();
    proto::Envelope alive;
    alive.mutable_alive();
    while (!stopping) {
      pulse.expires_after(interval);
      co_await wait(pulse);
      if (stopping) break;
      const Status sent = co_await channel.send(alive);
      if (sent) continue;
      cancellation.request(sent.error().while_doing("the source was lost"));
      break;  // sending the reply fails too
    }
    ended.try_send(std::error_code(), true);
  }

  ControlChannel& channel;
  const milliseconds interval;
  worker::Cancellation& cancellation;
  asio::steady_timer pulse;
  Token ended;  ///< for stop()
  bool stopping = false;
};

AliveBeat::AliveBeat(asio::io_context& io, ControlChannel& channel, milliseconds silence,
                     worker::Cancellation& cancellation)
    : impl_(std::make_shared<Impl>(io, channel, silence / kBeatsPerSilence, cancellation)) {
  asio::co_spawn(io, impl_->beat(), asio::detached);
}

awaitable<void> AliveBeat::stop() {
  const auto impl = impl_;
  impl->stopping = true;
  impl->pulse.cancel();
  co_await impl->ended.async_receive(asio::use_awaitable);
}

}  // namespace gcr::migration
