// Messages to the operator of a migration, which are queued here, so that a stalled terminal never
// blocks it. All of this belongs to the thread that runs the io_context.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/experimental/channel.hpp>
#include <asio/io_context.hpp>
#include <deque>
#include <optional>
#include <string>

#include "src/control/control_channel.h"

namespace gcr::migration {

class OperatorLink {
 public:
  /// The most messages that are queued, not counting Progress: an operator who leaves more unread
  /// is treated as disconnected.
  static constexpr std::size_t kMaxWaiting = 1024;

  /// `channel` outlives the link, and nothing else may send on it before write() has ended.
  OperatorLink(asio::io_context& io, control::ControlChannel& channel)
      : channel_(channel), wakeup_(io, 1) {}

  /// Queues a message. Messages are sent in order, as soon as the operator reads; none are sent
  /// after the operator has disconnected.
  void tell(proto::Envelope message);

  /// Queues an Event.
  void tell(const std::string& phase, std::string text);

  /// Sets the progress to send when no other message is queued; only the newest is kept.
  void show(proto::Progress progress);

  /// Ends the messages: nothing may be queued after this. Drops Progress that was not sent.
  void finish();

  /// Sends until all messages before finish() have been sent or the operator has disconnected.
  asio::awaitable<void> write();

 private:
  std::optional<proto::Envelope> next();
  void drop_operator(const std::string& why);
  void wake() { wakeup_.try_send(std::error_code(), true); }

  control::ControlChannel& channel_;
  asio::experimental::channel<void(std::error_code, bool)> wakeup_;  ///< wakes write()
  std::deque<proto::Envelope> queued_;
  std::optional<proto::Progress> progress_;
  bool finished_ = false;
  bool gone_ = false;
};

}  // namespace gcr::migration
