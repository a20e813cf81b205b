#include "migrate-agent/migration/engine/operator_link.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <asio/use_awaitable.hpp>
#include <utility>

namespace gcr::migration {

void OperatorLink::tell(proto::Envelope message) {
  if (gone_) return;
  if (queued_.size() >= kMaxWaiting)
    return drop_operator(fmt::format("{} messages are unread", kMaxWaiting));
  queued_.push_back(std::move(message));
  wake();
}

void OperatorLink::tell(const std::string& phase, std::string text) {
  proto::Envelope envelope;
  envelope.mutable_event()->set_phase(phase);
  envelope.mutable_event()->set_text(std::move(text));
  tell(std::move(envelope));
}

void OperatorLink::show(proto::Progress progress) {
  if (gone_ || finished_) return;
  progress_ = std::move(progress);
  wake();
}

void OperatorLink::finish() {
  finished_ = true;
  progress_.reset();
  wake();
}

std::optional<proto::Envelope> OperatorLink::next() {
  if (!queued_.empty()) {
    proto::Envelope message = std::move(queued_.front());
    queued_.pop_front();
    return message;
  }
  if (!progress_) return std::nullopt;
  proto::Envelope message;
  *message.mutable_progress() = *std::exchange(progress_, std::nullopt);
  return message;
}

/// A lost operator does not stop a migration in progress.
void OperatorLink::drop_operator(const std::string& why) {
  spdlog::info("the operator is disconnected, the migration continues: {}", why);
  gone_ = true;
  queued_.clear();
  progress_.reset();
}

asio::awaitable<void> OperatorLink::write() {
  for (;;) {
    if (const auto message = next()) {
      const Status sent = co_await channel_.send(*message);
      if (!sent) drop_operator(sent.error().message());
    } else if (finished_) {
      co_return;
    } else {
      co_await wakeup_.async_receive(asio::use_awaitable);
    }
  }
}

}  // namespace gcr::migration
