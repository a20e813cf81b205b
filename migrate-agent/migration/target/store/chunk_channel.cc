#include "migrate-agent/migration/target/store/chunk_channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "src/base/units.h"

namespace gcr::migration {

void ChunkChannel::add_region(transport::RegionId region, std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  regions_[region].resize((size_bytes + kChunkBytes - 1) / kChunkBytes);
}

void ChunkChannel::remove_region(transport::RegionId region) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(region);
  if (found == regions_.end()) return;
  for (const auto& content : found->second) {
    if (content) writer_.drop(*content);
  }
  regions_.erase(found);
}

bool ChunkChannel::take_known(transport::RegionId region, std::uint64_t offset,
                              const digest::Digest& digest, std::uint64_t length_bytes) {
  const auto content = writer_.find_chunk(std::as_bytes(std::span(digest.bytes)),
                                          static_cast<std::uint32_t>(length_bytes));
  return content && put(region, offset, *content);
}

void ChunkChannel::clear(transport::RegionId region, std::uint64_t offset) {
  const std::lock_guard lock(mutex_);
  auto& content = regions_.at(region).at(offset / kChunkBytes);
  if (content) writer_.drop(*content);
  content.reset();
}

/// Sets the content of a chunk, and drops the earlier one.
Status ChunkChannel::put(transport::RegionId region, std::uint64_t offset,
                         store::ContentRef content) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(region);
  const std::size_t chunk = offset / kChunkBytes;
  if (found == regions_.end() || offset % kChunkBytes != 0 || chunk >= found->second.size()) {
    return Error(Code::kInternal, fmt::format("region {} has no chunk at {}", region, offset));
  }
  auto& place = found->second[chunk];
  if (place) writer_.drop(*place);
  place = content;
  return {};
}

Status ChunkChannel::write(transport::RegionId region, std::uint64_t offset,
                           std::span<const std::byte> bytes) {
  pacer_.wait(bytes.size());
  GCR_TRY(broken_.status());
  const auto content = writer_.add(bytes);
  if (!content) return broken_.set(content.error());
  counters_.add_bytes(bytes.size(), 0);
  counters_.add_write();
  return put(region, offset, *content);
}

unsigned ChunkChannel::useful_writers() const {
  return std::clamp(std::thread::hardware_concurrency(), 1U, 16U);
}

}  // namespace gcr::migration
