// Stores VRAM in a checkpoint: a channel whose regions consist of the chunks of buffers.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "migrate-agent/gpu/digest/digest.h"
#include "store/writer.h"
#include "transport/channel.h"
#include "transport/transfer.h"

namespace gcr::migration {

class ChunkChannel : public transport::Channel {
 public:
  /// `writer` outlives this object.
  explicit ChunkChannel(store::Writer& writer) : writer_(writer) {}

  // The target calls these between rounds.

  void add_region(transport::RegionId region, std::uint64_t size_bytes);
  void remove_region(transport::RegionId region);

  /// Refers to the chunk of an earlier checkpoint, if one has this digest. False: none has it.
  bool take_known(transport::RegionId region, std::uint64_t offset, const digest::Digest& digest,
                  std::uint64_t length_bytes);

  /// Records that the chunk is all zeros.
  void clear(transport::RegionId region, std::uint64_t offset);

  /// The content of each chunk after the last write; nothing: the chunk is zeros.
  using Chunks = std::vector<std::optional<store::ContentRef>>;
  const Chunks& contents(transport::RegionId region) const { return regions_.at(region); }

  // The channel's interface. A write is one whole chunk.

  Status add_source(std::span<const std::byte>) override { return {}; }
  Status write(transport::RegionId region, std::uint64_t offset,
               std::span<const std::byte> bytes) override;
  Status flush() override { return broken_.status(); }
  void limit_rate(std::uint64_t bytes_per_second) override { pacer_.limit(bytes_per_second); }
  void cancel() override {
    (void)broken_.set(Error(Code::kCancelled, "the checkpoint was cancelled"));
  }
  unsigned useful_writers() const override;
  transport::Statistics statistics() const override { return counters_.statistics(); }

 private:
  Status put(transport::RegionId region, std::uint64_t offset, store::ContentRef content);

  store::Writer& writer_;
  transport::Pacer pacer_;
  transport::FirstError broken_;
  transport::Counters counters_;
  std::mutex mutex_;
  std::map<transport::RegionId, Chunks> regions_;
};

}  // namespace gcr::migration
