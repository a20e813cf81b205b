// What the operator of a migration is told. Messages are queued here and sent one after the other,
// so that a stalled terminal never blocks the migration. All of this belongs to the thread that
// runs the io_context.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <deque>
#include <optional>
#include <string>

#include "src/control/control_channel.h"

namespace gcr::agent {

class OperatorLink {
 public:
  /// At most this many messages are queued, not counting Progress: an operator who leaves more
  /// unread is treated as gone.
  static constexpr std::size_t kMaxWaiting = 1024;

  /// `channel` outlives the link, and nobody else sends on it before drain() or write() has ended.
  OperatorLink(asio::io_context& io, control::ControlChannel& channel);

  /// Sent in order, as soon as the operator reads. Nothing is sent to an operator who is gone.
  void tell(proto::Envelope message);

  /// The same for an Event.
  void tell(const std::string& phase, std::string text);

  /// Sent when no other message is queued; only the newest is kept.
  void show(proto::Progress progress);

  /// Sends, until it is cancelled.
  asio::awaitable<void> write();

  /// Returns once all messages have been sent, or the operator is gone; later Progress is not sent.
  asio::awaitable<void> drain();

 private:
  std::optional<proto::Envelope> next();
  void lose(const std::string& why);

  control::ControlChannel& channel_;
  asio::steady_timer something_;  ///< never expires; cancelled when there is something to send
  asio::steady_timer nothing_;    ///< the same, when there is nothing left
  std::deque<proto::Envelope> told_;
  std::optional<proto::Progress> shown_;
  bool sending_ = false;
  bool draining_ = false;
  bool gone_ = false;
};

}  // namespace gcr::agent
