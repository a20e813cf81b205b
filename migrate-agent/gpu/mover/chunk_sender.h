// Sends chunks of VRAM to a target. They are read from VRAM, from a copy in host memory, or from a
// store of checkpoints; what need not be sent is decided here, once for all of them.
#pragma once

#include <google/protobuf/repeated_ptr_field.h>

#include <functional>
#include <map>
#include <span>

#include "migrate-agent/gpu/mover/chunk.h"
#include "proto/control.pb.h"
#include "transport/channel.h"

namespace gcr::mover {

/// Where chunks go. Every region is full of zeros at first.
class ChunkTarget {
 public:
  virtual ~ChunkTarget() = default;

  virtual transport::Channel& channel() = 0;

  /// Whether the target has these `length_bytes` already, found by their digest. If so, it has put
  /// them at `offset` of the region, and they are not sent. Any thread.
  virtual bool has_chunk(transport::RegionId /*region*/, std::uint64_t /*offset*/,
                         const digest::Digest& /*digest*/, std::uint64_t /*length_bytes*/) {
    return false;
  }

  /// The chunk at `offset` has become zeros, which are not sent. Any thread.
  virtual void clear_chunk(transport::RegionId /*region*/, std::uint64_t /*offset*/) {}
};

/// Gets one chunk: its digest and its bytes, which are valid during the call. Called from several
/// threads at once, once for each chunk.
using ChunkSink = std::function<Status(const ChunkRef& chunk, const digest::Digest& digest,
                                       std::span<const std::byte> bytes)>;

/// Hands chunks to `sink` on up to `threads` threads. Returns when all of them have ended, with the
/// first error.
using ChunkSource = std::function<Status(unsigned threads, const ChunkSink& sink)>;

/// Knows the digest of every chunk as the target has it. One thread at a time, except settle().
class ChunkSender {
 public:
  explicit ChunkSender(digest::DigestKey key) : key_(std::move(key)) {}

  /// Adds a buffer, which is zeros at the target; or forgets one.
  void add(AllocationId id, std::uint64_t size_bytes);
  void remove(AllocationId id);

  /// Takes the target's regions of the buffers that were added since the last time. kProtocol if
  /// one has none, or one is named that was not added, or twice.
  Status assign(const google::protobuf::RepeatedPtrField<proto::BufferRegion>& regions);

  bool is_zeros(const ChunkRef& chunk, const digest::Digest& digest) const {
    return digest == digest::digest_zeros(key_, chunk.length_bytes);
  }

  enum class Step {
    kNone,     ///< the target has this chunk as it is
    kCleared,  ///< it is zeros now, and the target was told so
    kKnown,    ///< the target has taken it from elsewhere
    kSend,     ///< its bytes have to be sent
  };
  /// Decides for a chunk that has this digest now. All but kSend counts as sent from then on. After
  /// assign(). Several threads at once, each with another chunk.
  Step settle(const ChunkRef& chunk, const digest::Digest& digest, ChunkTarget& target);

  /// Sends what `source` hands over, as settle() decides, on as many threads as the channel can
  /// use. Returns after the channel's flush, with the number of bytes sent.
  Result<std::uint64_t> send(const ChunkSource& source, ChunkTarget& target);

  /// What the target has after send().
  const VramDigests& digests() const { return digests_; }

 private:
  const digest::DigestKey key_;
  VramDigests digests_;
  std::map<AllocationId, transport::RegionId> regions_;
};

}  // namespace gcr::mover
