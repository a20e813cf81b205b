// The source's half of the mover: holds the application's VRAM from the first export to the commit,
// finds what the destination does not have yet, and sends it. It never touches the application.
// Methods block; one thread at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "migrate-agent/gpu/mover/snapshot_reader.h"
#include "migrate-agent/gpu/mover/zeros.h"
#include "transport/channel.h"

namespace gcr::mover {

/// Whether the receiver has these bytes already, and puts them there by itself.
using HasChunk = std::function<bool(transport::RegionId region, std::uint64_t offset,
                                    const digest::Digest& digest, std::uint64_t length_bytes)>;

class OutgoingVram {
 public:
  OutgoingVram(std::shared_ptr<const device::Driver> driver, const digest::DigestKey& key,
               HasChunk has_chunk = {})
      : gpus_(std::move(driver)),
        digester_(key),
        reader_(digester_),
        has_chunk_(std::move(has_chunk)) {}

  /// Takes over a buffer of the application. The destination's copy is assumed to be zeros.
  Status add(AllocationId id, const Uuid& gpu, std::uint64_t size_bytes, UniqueFd descriptor);
  void remove(AllocationId id);

  /// Sets the receiver's region for the buffer.
  void assign(AllocationId id, transport::RegionId region);

  /// What the destination lacks at one moment. Valid for the present set of buffers: not after
  /// add() or remove().
  struct Dirty {
    std::vector<ChunkRef> chunks;      ///< to be read and sent
    std::uint64_t bytes = 0;           ///< of `chunks`
    std::uint64_t total_chunks = 0;    ///< that were digested
    std::uint64_t zero_chunks = 0;     ///< of these, full of zeros
    std::uint64_t cleared_chunks = 0;  ///< of these, not zeros when they were last sent
    std::uint64_t known_chunks = 0;    ///< other ones that the receiver has already
  };

  /// Digests all VRAM and compares with what was last sent. Chunks that are zeros now count as
  /// sent: the destination itself clears chunks that are expected to be zeros. So do those that
  /// the receiver has already.
  Result<Dirty> find_dirty();

  /// Reads and sends the chunks, on as many threads as the channel can use, and keeps the digests
  /// of the bytes that were sent. Returns after the channel's flush, with the number of bytes sent.
  /// Always the same channel, which ends before this object.
  Result<std::uint64_t> send(const Dirty& dirty, transport::Channel& channel);

  /// The expected digests at the destination: 16 bytes per chunk, in order, for every buffer.
  std::map<AllocationId, std::vector<digest::Digest>> digests() const;

  /// Descriptors that map the same VRAM in the application again (roll-back).
  Result<Descriptors> descriptors() const { return descriptors_of(buffers_); }

  /// Of all VRAM as it is now: 16 bytes per chunk, in order, for every buffer.
  Result<std::map<AllocationId, std::vector<digest::Digest>>> digest_now();

  const device::Allocation& vram(AllocationId id) const { return *buffers_.at(id).vram; }

  std::uint64_t total_bytes() const { return total_bytes_; }
  std::size_t count() const { return buffers_.size(); }
  bool contains(AllocationId id) const { return buffers_.contains(id); }

 private:
  struct Outgoing {
    std::unique_ptr<device::Allocation> vram;
    transport::RegionId region = 0;
    std::vector<digest::Digest> sent;
  };
  Status add_sources(transport::Channel& channel);

  device::Gpus gpus_;
  VramDigester digester_;
  SnapshotReader reader_;
  HasChunk has_chunk_;
  Zeros zeros_{digester_.key()};
  std::map<AllocationId, Outgoing> buffers_;
  std::uint64_t total_bytes_ = 0;
  std::size_t sources_ = 0;  ///< parts of the reader's memory that the channel knows
};

}  // namespace gcr::mover
