#include "migrate-agent/migration/target/agent/peer_link.h"

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/experimental/channel.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <optional>

#include "src/control/ask.h"

namespace gcr::migration {
namespace {

using asio::awaitable;
using control::ControlChannel;
using std::chrono::milliseconds;

/// Holds one token, which gives its receiver the turn. The value is unused; asio requires one.
using Token = asio::experimental::channel<void(std::error_code, bool)>;

/// Waits until the timer expires or is cancelled.
awaitable<void> wait(asio::steady_timer& timer) {
  std::error_code ignored;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

}  // namespace

/// The link's state, shared with the coroutine of watch(), which may end shortly after the link.
struct PeerLink::Impl : std::enable_shared_from_this<Impl> {
  Impl(asio::io_context& io, std::unique_ptr<ControlChannel> line, milliseconds patience)
      : channel(std::move(line)), silence(patience), turn(io, 1), pulse(io) {
    turn.try_send(std::error_code(), true);
  }

  awaitable<Result<proto::Envelope>> call(proto::Envelope request);
  awaitable<void> watch(std::function<void(const Error&)> on_lost);

  std::unique_ptr<ControlChannel> channel;
  const milliseconds silence;
  Token turn;  ///< to send a request
  asio::steady_timer pulse;
  unsigned calls = 0;  ///< calls that wait for their turn or for a reply
  bool paused = false;
  bool closed = false;
  std::optional<Error> lost;
};

awaitable<Result<proto::Envelope>> PeerLink::Impl::call(proto::Envelope request) {
  const auto self = shared_from_this();
  ++calls;
  co_await turn.async_receive(asio::use_awaitable);
  Result<proto::Envelope> answer;
  if (!lost) answer = co_await channel->call(request, silence);
  if (!answer) lost = answer.error();
  if (lost) answer = *lost;
  turn.try_send(std::error_code(), true);
  --calls;
  co_return control::check_reply(request, std::move(answer), "the destination");
}

awaitable<void> PeerLink::Impl::watch(std::function<void(const Error&)> on_lost) {
  const auto self = shared_from_this();
  while (!closed && !lost) {
    pulse.expires_after(silence / kBeatsPerSilence);
    co_await wait(pulse);
    if (closed || calls > 0) continue;  // the caller of call() gets the error
    proto::Envelope question;
    question.mutable_clock_request()->set_paused(paused);
    const auto answer = co_await call(question);
    if (!answer && !closed) co_return on_lost(answer.error());
  }
}

PeerLink::PeerLink(asio::io_context& io, std::unique_ptr<ControlChannel> channel,
                   milliseconds silence)
    : impl_(std::make_shared<Impl>(io, std::move(channel), silence)) {}

PeerLink::~PeerLink() { close(); }

awaitable<Result<proto::Envelope>> PeerLink::call(const proto::Envelope& request) {
  return impl_->call(request);
}

void PeerLink::watch(std::function<void(const Error&)> on_lost) {
  asio::co_spawn(impl_->pulse.get_executor(), impl_->watch(std::move(on_lost)), asio::detached);
}

void PeerLink::set_paused(bool paused) {
  impl_->paused = paused;
  impl_->pulse.cancel();
}

void PeerLink::abandon_call() {
  if (impl_->calls > 0) close();
}

const control::PeerIdentity& PeerLink::peer() const { return impl_->channel->peer(); }

void PeerLink::close() {
  impl_->closed = true;
  if (!impl_->lost) impl_->lost = Error(Code::kCancelled, "this agent closed the connection");
  impl_->pulse.cancel();
  impl_->channel->close();
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
