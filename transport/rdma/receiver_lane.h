// One lane of an RDMA receiver: answers the requests of its sender.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "src/base/unique_fd.h"
#include "transport/lane_thread.h"
#include "transport/rdma/queue_pair.h"
#include "transport/rdma/regions.h"
#include "transport/transfer.h"

namespace gcr::transport::rdma {

/// State that the lanes of a receiver share.
struct Incoming {
  OnLanded on_landed;
  OnArrived on_arrived;  ///< set before the first region that needs it
  std::chrono::milliseconds peer_timeout{};
  Regions regions;
  Counters counters;
  FirstError broken;
  std::atomic<bool> cancelled = false;  ///< lanes must stop waiting
};

/// A lane. Used by one thread, except for interrupt() and the queue pair's disconnect().
class ReceiverLane {
 public:
  ReceiverLane(std::unique_ptr<QueuePair> queue_pair, UniqueFd wake, Incoming& incoming);

  QueuePair& queue_pair() { return *queue_pair_; }

  /// Answers requests until the sender's last message. Fails with the error that broke the lane.
  Status serve();

  /// Whether any message has arrived from the sender.
  bool has_heard() const { return has_heard_; }

  /// Sends `error`, which broke the lane, to the sender unless the receiver was cancelled; then
  /// closes the connection.
  void end_with(const Error& error);
  /// Waits a bounded time for the sender to close the connection; call after its last message.
  void end();

  /// Makes serve() notice that the receiver is broken. Any thread; never blocks.
  void interrupt() const { wake_up(*wake_); }

 private:
  Status handle(const Completion& completion);
  Status poll_once(std::chrono::milliseconds limit);
  Status handle_request();
  Result<std::optional<Message>> answer(const Message& request);
  Status land_in_window(const Message& request);
  Status acknowledge_places();
  Status send(const Message& message);
  template <class Condition>
  void linger(Condition done);

  const std::unique_ptr<QueuePair> queue_pair_;
  const std::shared_ptr<const UniqueFd> wake_;
  Incoming& incoming_;
  std::deque<Completion> requests_;  ///< received, not yet answered
  std::vector<unsigned> free_slots_;
  std::shared_ptr<WindowPart> part_;  ///< of the landing window; set at the first use
  bool ended_ = false;                ///< the sender has sent its last message
  bool has_heard_ = false;
  bool last_word_sent_ = false;
  std::optional<Error> failure_;  ///< of the connection
};

}  // namespace gcr::transport::rdma
