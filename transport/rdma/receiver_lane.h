// One queue pair of a receiver: answers its sender's requests.
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

/// What the lanes of a receiver share.
struct Incoming {
  OnLanded on_landed;
  OnArrived on_arrived;  ///< set before the first region that needs it
  std::chrono::milliseconds peer_timeout{};
  Regions regions;
  Counters counters;
  FirstError broken;
  std::atomic<bool> cancelled = false;  ///< lanes shall stop waiting
};

/// Used by one thread, except for disturb() and the queue pair's disconnect().
class ReceiverLane {
 public:
  ReceiverLane(std::unique_ptr<QueuePair> queue_pair, UniqueFd wake, Incoming& incoming);

  QueuePair& queue_pair() { return *queue_pair_; }

  /// Serves until the sender's last message. Fails with what broke the lane.
  Status serve();

  /// Whether the sender has sent anything.
  bool has_heard() const { return has_heard_; }

  /// Tells the sender what broke the lane, unless it was cancelled, and closes the connection.
  void end_with(const Error& error);
  /// After a last message: waits a bounded time until the sender has closed the connection.
  void end();

  /// Makes serve() notice that the receiver is broken. Any thread; never blocks.
  void disturb() const { wake_up(*wake_); }

 private:
  Status take(const Completion& completion);
  Status turn(std::chrono::milliseconds limit);
  Status take_request();
  Result<std::optional<Message>> answer(const Message& request);
  Status take_in_window(const Message& request);
  Status acknowledge_places();
  Status send(const Message& message);
  template <class Condition>
  void linger(Condition done);

  const std::unique_ptr<QueuePair> queue_pair_;
  const std::shared_ptr<const UniqueFd> wake_;
  Incoming& incoming_;
  std::deque<Completion> requests_;  ///< received, not answered
  std::vector<unsigned> free_slots_;
  std::shared_ptr<WindowPart> part_;  ///< of the landing window, from the first use
  bool ended_ = false;                ///< the sender has sent its last message
  bool has_heard_ = false;
  bool last_word_sent_ = false;
  std::optional<Error> failure_;  ///< of the connection
};

}  // namespace gcr::transport::rdma
