#include "migrate-agent/roles/operator_link.h"

#include <spdlog/spdlog.h>

#include <asio/redirect_error.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>
#include <utility>

namespace gcr::agent {
namespace {

/// Until `timer` is cancelled, by its owner or with the coroutine; the latter throws.
asio::awaitable<void> wait_for(asio::steady_timer& timer) {
  std::error_code woken;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, woken));
}

}  // namespace

OperatorLink::OperatorLink(asio::io_context& io, control::ControlChannel& channel)
    : channel_(channel),
      something_(io, asio::steady_timer::time_point::max()),
      nothing_(io, asio::steady_timer::time_point::max()) {}

void OperatorLink::tell(proto::Envelope message) {
  if (gone_) return;
  if (told_.size() >= kMaxWaiting) return lose("it takes nothing");
  told_.push_back(std::move(message));
  something_.cancel();
}

void OperatorLink::tell(const std::string& phase, std::string text) {
  proto::Envelope envelope;
  envelope.mutable_event()->set_phase(phase);
  envelope.mutable_event()->set_text(std::move(text));
  tell(std::move(envelope));
}

void OperatorLink::show(proto::Progress progress) {
  if (gone_ || draining_) return;
  shown_ = std::move(progress);
  something_.cancel();
}

std::optional<proto::Envelope> OperatorLink::next() {
  if (!told_.empty()) {
    proto::Envelope message = std::move(told_.front());
    told_.pop_front();
    return message;
  }
  if (!shown_) return std::nullopt;
  proto::Envelope message;
  *message.mutable_progress() = *std::exchange(shown_, std::nullopt);
  return message;
}

/// An operator who is gone does not stop a migration that is under way.
void OperatorLink::lose(const std::string& why) {
  spdlog::info("the operator is gone: {}", why);
  gone_ = true;
  told_.clear();
  shown_.reset();
  nothing_.cancel();
}

asio::awaitable<void> OperatorLink::write() {
  for (;;) {
    auto message = next();
    if (!message) {
      nothing_.cancel();
      co_await wait_for(something_);
      continue;
    }
    sending_ = true;
    const Status sent = co_await channel_.send(*message);
    sending_ = false;
    if (!sent) lose(sent.error().message());
  }
}

asio::awaitable<void> OperatorLink::drain() {
  draining_ = true;
  shown_.reset();
  while (!gone_ && (sending_ || !told_.empty())) co_await wait_for(nothing_);
}

}  // namespace gcr::agent
