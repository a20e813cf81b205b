// The source's half of the mover: holds the application's VRAM from the first export to the commit,
// finds what the destination does not have yet, and sends it. It never touches the application.
// Methods block; one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "migrate-agent/gpu/mover/chunk_sender.h"
#include "migrate-agent/gpu/mover/snapshot_reader.h"

namespace gcr::mover {

class OutgoingVram {
 public:
  OutgoingVram(std::shared_ptr<const device::Driver> driver, const digest::DigestKey& key)
      : gpus_(std::move(driver)), digester_(key), reader_(digester_), sender_(key) {}

  /// Takes over a buffer of the application. The destination's copy is assumed to be zeros.
  Status add(AllocationId id, const Uuid& gpu, std::uint64_t size_bytes, UniqueFd descriptor);
  void remove(AllocationId id);

  /// As ChunkSender::assign().
  Status assign(const google::protobuf::RepeatedPtrField<proto::BufferRegion>& regions) {
    return sender_.assign(regions);
  }

  /// What the destination lacks at one moment. Valid for the present set of buffers: not after
  /// add() or remove().
  struct Dirty {
    std::vector<VramChunk> chunks;     ///< to be read and sent
    std::uint64_t bytes = 0;           ///< of `chunks`
    std::uint64_t zero_chunks = 0;     ///< full of zeros, among all
    std::uint64_t cleared_chunks = 0;  ///< of these, not zeros when they were last sent
  };

  /// Digests all VRAM and compares with what was last sent. Chunks that the target clears or has
  /// already count as sent (ChunkSender::settle()).
  Result<Dirty> find_dirty(ChunkTarget& target);

  /// Reads and sends the chunks, on as many threads as the channel can use, and keeps the digests
  /// of the bytes that were sent. Returns after the channel's flush, with the number of bytes sent.
  /// Always the same target, whose channel ends before this object.
  Result<std::uint64_t> send(const Dirty& dirty, ChunkTarget& target);

  /// The digests that are expected at the destination.
  const VramDigests& digests() const { return sender_.digests(); }

  /// Descriptors that map the same VRAM in the application again (roll-back).
  Result<Descriptors> descriptors() const { return descriptors_of(buffers_); }

  /// Of all VRAM as it is now.
  Result<VramDigests> digest_now();

  const device::Allocation& vram(AllocationId id) const { return *buffers_.at(id).vram; }

  std::uint64_t total_bytes() const { return total_bytes_; }
  std::size_t count() const { return buffers_.size(); }
  bool contains(AllocationId id) const { return buffers_.contains(id); }

 private:
  struct Buffer {
    std::unique_ptr<device::Allocation> vram;
  };
  Status add_sources(transport::Channel& channel);

  device::Gpus gpus_;
  VramDigester digester_;
  SnapshotReader reader_;
  ChunkSender sender_;
  std::map<AllocationId, Buffer> buffers_;
  std::uint64_t total_bytes_ = 0;
  std::size_t sources_ = 0;  ///< parts of the reader's memory that the channel knows
};

}  // namespace gcr::mover
