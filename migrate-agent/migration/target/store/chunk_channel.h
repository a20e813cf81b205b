// VRAM on its way into a checkpoint: a channel whose regions are the chunks of buffers.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "migrate-agent/gpu/digest/digest.h"
#include "store/writer.h"
#include "transport/channel.h"
#include "transport/pacer.h"
#include "transport/transfer.h"

namespace gcr::migration {

class ChunkChannel : public transport::Channel {
 public:
  /// `writer` outlives this object.
  explicit ChunkChannel(store::Writer& writer) : writer_(writer) {}

  // For the target, between rounds.

  void add_region(transport::RegionId region, std::uint64_t size_bytes);
  void remove_region(transport::RegionId region);

  /// An earlier checkpoint has this chunk: it is shown from there.
  bool take_known(transport::RegionId region, std::uint64_t offset, const digest::Digest& digest,
                  std::uint64_t length_bytes);

  /// The chunk is zeros.
  void clear(transport::RegionId region, std::uint64_t offset);

  /// What is stored of each chunk of a region; nothing: zeros. After the last write.
  using Chunks = std::vector<std::optional<store::ContentRef>>;
  const Chunks& contents(transport::RegionId region) const { return regions_.at(region); }

  // The channel. A write is one whole chunk.

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
