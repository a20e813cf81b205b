// What the operator of a migration is told. Messages are queued here and sent one after the other,
// so that a stalled terminal never blocks the migration. All of this belongs to the thread that
// runs the io_context.
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
  /// At most this many messages are queued, not counting Progress: an operator who leaves more
  /// unread is treated as gone.
  static constexpr std::size_t kMaxWaiting = 1024;

  /// `channel` outlives the link, and nobody else sends on it before write() has ended.
  OperatorLink(asio::io_context& io, control::ControlChannel& channel)
      : channel_(channel), something_(io, 1) {}

  /// Sent in order, as soon as the operator reads. Nothing is sent to an operator who is gone.
  void tell(proto::Envelope message);

  /// The same for an Event.
  void tell(const std::string& phase, std::string text);

  /// Sent when no other message is queued; only the newest is kept.
  void show(proto::Progress progress);

  /// Nothing more is told after this; Progress that was not sent is not sent any more.
  void finish();

  /// Sends, until all messages before finish() have been sent or the operator is gone.
  asio::awaitable<void> write();

 private:
  std::optional<proto::Envelope> next();
  void lose(const std::string& why);
  void wake() { something_.try_send(std::error_code(), true); }

  control::ControlChannel& channel_;
  asio::experimental::channel<void(std::error_code, bool)> something_;  ///< wakes write()
  std::deque<proto::Envelope> told_;
  std::optional<proto::Progress> shown_;
  bool finished_ = false;
  bool gone_ = false;
};

}  // namespace gcr::migration
