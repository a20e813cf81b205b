// What the operator of a migration is told: messages wait here and are sent one after the other, so
// that whoever does the migration never waits for a terminal that takes nothing. All of this
// belongs to the thread that runs the io_context.
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
  /// More messages than this, not counting Progress, never wait: an operator who leaves so many is
  /// gone.
  static constexpr std::size_t kMaxWaiting = 1024;

  /// `channel` outlives the link, and nobody else sends on it before drain() or write() has ended.
  OperatorLink(asio::io_context& io, control::ControlChannel& channel);

  /// Sent in order, as soon as the operator takes it. Nothing is sent to an operator who is gone.
  void tell(proto::Envelope message);

  /// The same of an Event.
  void tell(const std::string& phase, std::string text);

  /// Sent after everything that was told; only the newest is kept.
  void show(proto::Progress progress);

  /// Sends, until it is cancelled.
  asio::awaitable<void> write();

  /// Returns once everything that was told has been sent, or the operator is gone; what is shown
  /// from now on is not sent.
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
