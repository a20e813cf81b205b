// One connected queue pair with what it needs: completions, and buffers for messages.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "src/base/result.h"
#include "transport/rdma/messages.h"
#include "transport/rdma/verbs.h"

namespace gcr::transport::rdma {

/// Bytes that the peer's memory gets before a message arrives there.
struct RemoteWrite {
  const std::byte* from = nullptr;  ///< within the memory region `local_key`
  std::uint32_t length_bytes = 0;
  std::uint32_t local_key = 0;
  std::uint64_t address = 0;
  std::uint32_t remote_key = 0;
};

/// What has completed. kAlive is taken only when it failed.
struct Completion {
  enum class Kind { kSent, kReceived, kAlive };
  Kind kind = Kind::kSent;
  unsigned slot = 0;               ///< kSent: that of send(); kReceived: the buffer
  std::uint32_t length_bytes = 0;  ///< kReceived
  ibv_wc raw{};                    ///< for completion_error(), unless it succeeded

  bool succeeded() const { return raw.status == IBV_WC_SUCCESS; }
};

/// Sends may come from any thread; completions are taken by one. On destruction the connection is
/// closed and all requests are gone; events of its id must have been acknowledged by then.
class QueuePair {
 public:
  /// Makes the queue pair of `id`, whose device is known, and posts all its receives: `depth` + 1.
  /// `domain` must outlive it. To be done before rdma_connect or rdma_accept.
  static Result<std::unique_ptr<QueuePair>> make(ConnectionId id, ibv_pd* domain, unsigned depth);
  ~QueuePair();

  rdma_cm_id* id() const { return id_.get(); }
  /// kSent slots are below this: one per request or answer, and one for the last message.
  unsigned slots() const { return depth_ + 1; }

  /// Sends `message` in `slot`, after `write` if there is one. The slot, and the bytes of `write`,
  /// must be left alone until the slot's kSent is taken; with an error that may be that of either.
  Status send(unsigned slot, const Message& message, const std::optional<RemoteWrite>& write = {});

  /// Gives completions to `take` until there are none; afterwards completion_fd() becomes readable
  /// with the next. Stops at the first error of `take`.
  Status drain(const std::function<Status(const Completion&)>& take);
  int completion_fd() const { return channel_->fd; }
  /// To be called when completion_fd() is readable.
  void take_notification();

  /// The content of a kReceived's buffer.
  Result<Message> received(const Completion& completion) const;
  /// Posts the buffer of a kReceived again.
  Status post_receive(unsigned slot);

  /// To be called by the thread that takes the completions, a few times in `peer_timeout`. After
  /// some silence makes the peer's device answer; fails with kUnavailable if nothing came for
  /// `peer_timeout` nevertheless, counted from the first call at the earliest. (Devices give up a
  /// silent peer by themselves, but not all of them in every case: soft RoCE retries forever while
  /// the link is down.)
  Status check_life(std::chrono::milliseconds peer_timeout, std::string_view peer);

  /// Closes the connection: requests end with an error, and the peer is notified. Any thread.
  void disconnect();

 private:
  QueuePair(ConnectionId id, unsigned depth) : depth_(depth), id_(std::move(id)) {}
  Status make_queues(ibv_pd* domain);
  Status post(ibv_send_wr* first, std::string_view doing);
  std::span<std::byte> send_buffer(unsigned slot);
  std::span<std::byte> receive_buffer(unsigned slot);

  const unsigned depth_;
  std::vector<std::byte> buffers_;  ///< of sends, then of receives
  MemoryRegion memory_;
  ConnectionId id_;
  CompletionChannel channel_;
  CompletionQueue completions_;
  QueuePairOf queue_pair_;  ///< destroyed first
  bool armed_ = false;
  std::optional<std::chrono::steady_clock::time_point> heard_;  ///< the peer, or first asked about
  bool asked_for_life_ = false;
};

}  // namespace gcr::transport::rdma
