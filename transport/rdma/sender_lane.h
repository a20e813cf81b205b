// One lane of an RDMA sender: its requests, the callers that wait for them, and the region keys.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "src/base/unique_fd.h"
#include "transport/rdma/queue_pair.h"

namespace gcr::transport::rdma {

/// A lane. Thread-safe, except for handle(), which only the draining thread calls.
class SenderLane {
 public:
  /// The pieces of one write that are sent in place. Must live until wait_for() or fail() has
  /// returned.
  struct Batch {
    unsigned unsent = 0;  ///< pieces that the peer's device does not have yet; lane's mutex
  };

  struct Piece {
    RegionId region = 0;
    std::uint64_t offset = 0;
    std::span<const std::byte> bytes;
    std::optional<std::uint32_t> local_key = {};  ///< nullopt: the bytes are copied
  };

  SenderLane(std::unique_ptr<QueuePair> queue_pair, ibv_pd* domain, unsigned depth,
             std::size_t piece_bytes);

  QueuePair& queue_pair() { return *queue_pair_; }
  const ibv_pd* domain() const { return domain_; }

  /// Sends a piece of at most piece_bytes. Waits for a free slot; for the region's key if it is the
  /// first piece for that region; and for a place if the region has no memory of its own. Bytes
  /// with a local key must not change until wait_for(batch) has returned.
  Status send(const Piece& piece, Batch& batch);

  /// Returns when the peer's device has all bytes of the batch.
  Status wait_for(Batch& batch);

  /// Returns when the receiver has acknowledged all earlier pieces.
  Status flush();

  /// Sends the last message, and returns when the peer's device has it, or after `limit`.
  void send_end(std::chrono::milliseconds limit);

  /// Makes all running and later calls fail with `error`, unless they fail already.
  void fail(const Error& error);

  /// Handles a completion; an error must break the whole channel.
  Status handle(const Completion& completion);

 private:
  struct Slot {
    MessageType request = MessageType::kInvalid;  ///< kInvalid: free
    std::uint64_t number = 0;
    bool sent = false;        ///< the peer's device has it
    bool answered = false;    ///< the receiver has answered
    bool refusable = false;   ///< it does not fit the region, so the receiver refuses it
    std::uint16_t place = 0;  ///< 1 + place in the window; 0: none
    RegionId region = 0;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    Batch* batch = nullptr;
  };
  struct Key {
    std::uint64_t address = 0;
    std::uint64_t length = 0;
    std::uint32_t key = 0;
    bool windowed = false;
  };

  Result<unsigned> claim_slot(std::unique_lock<std::mutex>& lock, MessageType request);
  Status claim_place(std::unique_lock<std::mutex>& lock, Slot& slot);
  Status wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& condition);
  Result<Key> key_of(RegionId region);
  Result<RemoteWrite> source_of(unsigned slot, const Piece& piece);
  Status make_copies();
  void free_if_done(Slot& slot);
  Status handle_answer(const Message& message);
  Error failure_of(const Completion& completion) const;

  ibv_pd* const domain_;
  const std::size_t piece_bytes_;
  UniqueMapping copies_;  ///< piece_bytes_ for each slot; made under mutex_, once
  MemoryRegion copies_registered_;
  const std::unique_ptr<QueuePair> queue_pair_;

  mutable std::mutex mutex_;  ///< guards everything below
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::map<RegionId, Key> keys_;
  std::optional<std::vector<std::uint16_t>> free_places_;  ///< once the window is known
  std::uint64_t requests_ = 0;
  bool ended_ = false;
  std::optional<Error> error_;
};

}  // namespace gcr::transport::rdma
