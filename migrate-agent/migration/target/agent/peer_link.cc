#include "migrate-agent/migration/target/agent/peer_link.h"

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>

#include "src/control/ask.h"

namespace gcr::migration {

using asio::awaitable;
using control::ControlChannel;
using std::chrono::milliseconds;

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
    std::error_code ignored;  // set_paused() and close() cancel the wait
    co_await pulse_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
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

}  // namespace gcr::migration
