// One queue pair of a receiver: answers its sender's requests.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "src/base/unique_fd.h"
#include "transport/rdma/life.h"
#include "transport/rdma/queue_pair.h"

namespace gcr::transport::rdma {

/// What a lane needs from its receiver.
struct LaneService {
  /// The answer to a request: kRegionKey or kAcknowledged. An error ends the lane.
  std::function<Result<Message>(const Message& request)> answer;
  /// What broke the whole receiver, if anything did.
  std::function<std::optional<Error>()> broken;
  /// Whether lanes shall stop waiting.
  std::function<bool()> cancelled;
};

/// Used by one thread, except for disturb() and disconnected().
class ReceiverLane {
 public:
  static Result<std::unique_ptr<ReceiverLane>> make(std::unique_ptr<QueuePair> queue_pair,
                                                    std::chrono::milliseconds peer_timeout,
                                                    LaneService service);

  QueuePair& queue_pair() { return *queue_pair_; }

  /// Serves until the sender's last message. Fails with what broke the lane.
  Status serve();

  /// Whether the sender has sent anything.
  bool has_heard() const { return has_heard_; }

  /// Tells the sender what broke the lane, unless it was cancelled, and closes the connection.
  void end_with(const Error& error);
  /// After a last message: waits a bounded time until the sender has closed the connection.
  void end();

  /// Makes serve() check service.broken. Any thread; never blocks.
  void disturb();

 private:
  ReceiverLane(std::unique_ptr<QueuePair> queue_pair, std::chrono::milliseconds peer_timeout,
               LaneService service);
  Status take(const Completion& completion);
  Status turn(std::chrono::milliseconds limit);
  Status answer_one();
  template <class Condition>
  void linger(Condition done);

  const std::unique_ptr<QueuePair> queue_pair_;
  const LaneService service_;
  Life life_;
  UniqueFd wake_;
  std::deque<Completion> requests_;  ///< received, not answered
  std::vector<unsigned> free_slots_;
  bool ended_ = false;  ///< the sender has sent its last message
  bool has_heard_ = false;
  bool last_word_sent_ = false;
  std::optional<Error> failure_;  ///< of the connection
};

}  // namespace gcr::transport::rdma
