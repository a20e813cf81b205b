// One connected queue pair with its completion queue and its message buffers.
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

/// An RDMA WRITE that precedes a message.
struct RemoteWrite {
  const std::byte* from = nullptr;  ///< within the memory region `local_key`
  std::uint32_t length_bytes = 0;
  std::uint32_t local_key = 0;
  std::uint64_t address = 0;
  std::uint32_t remote_key = 0;
};

/// A completed work request. A kProbe is reported only if it failed.
struct Completion {
  enum class Kind { kSent, kReceived, kProbe };
  Kind kind = Kind::kSent;
  unsigned slot = 0;               ///< kSent: the argument of send(); kReceived: the buffer
  std::uint32_t length_bytes = 0;  ///< kReceived
  ibv_wc raw{};                    ///< the argument for completion_error() after a failure

  bool succeeded() const { return raw.status == IBV_WC_SUCCESS; }
};

/// A queue pair. Any thread may send; one thread drains completions. The destructor closes the
/// connection and drops all requests; events of the id must have been acknowledged by then.
class QueuePair {
 public:
  /// Creates the queue pair of `id`, whose device is known, and posts `depth` + 1 receives. Call it
  /// before rdma_connect or rdma_accept. `domain` must outlive the queue pair.
  static Result<std::unique_ptr<QueuePair>> make(ConnectionId id, ibv_pd* domain, unsigned depth);
  ~QueuePair();

  rdma_cm_id* id() const { return id_.get(); }
  /// Number of slots for send(): one per request or answer, and one for the last message.
  unsigned slots() const { return depth_ + 1; }

  /// Sends `message` in `slot`, after `write` if there is one. The caller must not reuse the slot
  /// or change the bytes of `write` until drain() has reported the slot's kSent. An error in it may
  /// concern the write or the message.
  Status send(unsigned slot, const Message& message, const std::optional<RemoteWrite>& write = {});

  /// Passes completions to `take` until there are none; the next one makes completion_fd()
  /// readable. Stops at the first error of `take`.
  Status drain(const std::function<Status(const Completion&)>& take);
  int completion_fd() const { return channel_->fd; }
  /// Consumes the notification; call it when completion_fd() is readable.
  void acknowledge_notification();

  /// Decodes the message of a kReceived completion.
  Result<Message> received(const Completion& completion) const;
  /// Posts the buffer of a kReceived completion again.
  Status post_receive(unsigned slot);

  /// Checks that the peer is alive; the draining thread calls it several times per `peer_timeout`.
  /// After some silence it sends a probe that the peer's device answers. Fails with kUnavailable if
  /// nothing arrived for `peer_timeout`, counted from the first call at the earliest. (Devices
  /// detect a silent peer themselves, but not always: soft RoCE retries forever while the link is
  /// down.)
  Status check_liveness(std::chrono::milliseconds peer_timeout, std::string_view peer);

  /// Closes the connection: pending requests fail, and the peer is notified. Any thread.
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
  std::optional<std::chrono::steady_clock::time_point> last_heard_;  ///< or the first check
  bool probing_ = false;
};

}  // namespace gcr::transport::rdma
