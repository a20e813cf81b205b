#include "migrate-agent/mover/incoming_vram.h"

#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/fault/fault.h"

namespace gcr::mover {

void IncomingVram::begin(const digest::DigestKey& key, Mode mode) {
  digester_.emplace(key);
  mode_ = mode;
}

/// Adds one piece of landing memory for what does not fit the free ones.
Status IncomingVram::take_landing_memory(const std::vector<Wanted>& wanted) {
  std::multimap<std::uint64_t, std::span<std::byte>> left = free_;
  std::vector<std::uint64_t> lengths;
  std::uint64_t total = 0;
  for (const Wanted& buffer : wanted) {
    const std::uint64_t length = round_up(buffer.size_bytes, kChunkBytes);
    if (const auto found = left.lower_bound(length); found != left.end()) {
      left.erase(found);
      continue;
    }
    lengths.push_back(length);
    total += length;
  }
  if (total == 0) return {};
  GCR_ASSIGN(auto region, landing::LandingRegion::create(total, policy_));
  GCR_ASSIGN(const auto gpu, gpus_.on(wanted.front().gpu));
  GCR_ASSIGN(auto page_locked, gpu->page_lock(region.bytes()));
  std::uint64_t at = 0;
  for (const std::uint64_t length : lengths) {
    free_.emplace(length, region.bytes().subspan(at, length));
    at += length;
  }
  if (note_.empty()) note_ = region.note();
  regions_.push_back(std::move(region));
  page_locked_.push_back(std::move(page_locked));
  return {};
}

Result<IncomingVram::Incoming> IncomingVram::place(const Wanted& wanted) {
  GCR_ASSIGN(auto gpu, gpus_.on(wanted.gpu));
  auto stream = streams_.find(wanted.gpu);
  if (stream == streams_.end()) {
    GCR_ASSIGN(auto made, gpu->stream());
    stream = streams_.emplace(wanted.gpu, std::move(made)).first;
  }
  const std::size_t chunks = chunk_count(wanted.size_bytes);
  Incoming buffer{.gpu = std::move(gpu),
                  .size_bytes = wanted.size_bytes,
                  .host_node = wanted.host_node,
                  .region = next_region_++,
                  .landing = {},
                  .place = {},
                  .stream = stream->second.get(),
                  .vram = nullptr,
                  .landed = std::vector<std::atomic<bool>>(chunks)};
  if (mode_ == Mode::kPrefill) {
    if (Status created = create_vram(wanted.id, buffer); !created) return created.error();
    GCR_TRY(digester_->prepare(buffer.gpu, chunks));
  }
  return buffer;
}

/// All or nothing: prefilled chunks are still in landing memory too.
Status IncomingVram::turn_into_reload(std::string why, std::map<AllocationId, Incoming>& created) {
  note_ = std::move(why) + ": it is filled after the switchover";
  mode_ = Mode::kReload;
  const std::lock_guard lock(lanes_mutex_);
  GCR_TRY(synchronize());
  for (auto* map : {&buffers_, &created}) {
    for (auto& [id, incoming] : *map) incoming.vram.reset();
  }
  return {};
}

Status IncomingVram::prepare(const std::vector<Wanted>& wanted) {
  std::map<AllocationId, Incoming> created;
  for (const Wanted& buffer : wanted) {
    auto placed = place(buffer);
    if (!placed && mode_ == Mode::kPrefill && placed.error().code() == Code::kResourceExhausted) {
      GCR_TRY(turn_into_reload(placed.error().message(), created));
      placed = place(buffer);
    }
    if (!placed)
      return placed.error().while_doing(fmt::format("cannot prepare buffer {}", buffer.id.value));
    created.emplace(buffer.id, std::move(*placed));
  }
  GCR_TRY(take_landing_memory(wanted));
  for (auto& [id, buffer] : created) {
    const auto memory = free_.lower_bound(round_up(buffer.size_bytes, kChunkBytes));
    buffer.landing = memory->second.first(buffer.size_bytes);
    buffer.place = memory->second;
    free_.erase(memory);
  }
  const std::lock_guard lock(lanes_mutex_);
  for (const auto& [id, buffer] : created) buffer_of_region_.emplace(buffer.region, id);
  buffers_.merge(created);
  return {};
}

void IncomingVram::remove(AllocationId id) {
  const auto found = buffers_.find(id);
  if (found == buffers_.end()) return;
  (void)found->second.stream->synchronize();  // nothing reads its landing memory any more
  free_.emplace(found->second.place.size(), found->second.place);
  std::map<AllocationId, Incoming>::node_type removed;  // destroyed at the end, without the lock
  const std::lock_guard lock(lanes_mutex_);
  buffer_of_region_.erase(found->second.region);
  removed = buffers_.extract(found);
}

IncomingVram::Region IncomingVram::region(AllocationId id) const {
  const Incoming& buffer = buffers_.at(id);
  return {buffer.region, buffer.landing};
}

Status IncomingVram::create_vram(AllocationId id, Incoming& buffer) {
  GCR_ASSIGN(buffer.vram, buffer.gpu->create(buffer.size_bytes, buffer.host_node));
  return clear(id, buffer, 0, buffer.size_bytes);
}

Status IncomingVram::clear(AllocationId id, const Incoming& buffer, std::uint64_t offset,
                           std::uint64_t length) {
  const Status filled = buffer.stream->fill(buffer.vram->address() + offset, std::byte{0}, length);
  if (filled) return {};
  return filled.error().while_doing(
      fmt::format("cannot clear {} of buffer {}", format_bytes(length), id.value));
}

Status IncomingVram::upload(AllocationId id, const Incoming& buffer, std::uint64_t offset,
                            std::uint64_t length) {
  const Status copied = buffer.stream->copy_in(buffer.vram->address() + offset,
                                               buffer.landing.data() + offset, length);
  if (copied) return {};
  return copied.error().while_doing(
      fmt::format("cannot upload {} to buffer {}", format_bytes(length), id.value));
}

Status IncomingVram::landed(transport::RegionId region, std::uint64_t offset,
                            std::uint64_t length_bytes) {
  const std::lock_guard lock(lanes_mutex_);
  const auto found = buffer_of_region_.find(region);
  if (found == buffer_of_region_.end()) return {};
  Incoming& buffer = buffers_.at(found->second);
  const std::uint64_t end = offset + length_bytes;
  for (std::uint64_t chunk = offset / kChunkBytes; chunk * kChunkBytes < end; ++chunk) {
    buffer.landed[chunk].store(true, std::memory_order_relaxed);
  }
  if (fault::armed("destination.landing.corrupt")) buffer.landing[offset] ^= std::byte{1};
  if (!buffer.vram) return {};
  return upload(found->second, buffer, offset, length_bytes);
}

Status IncomingVram::synchronize() const {
  for (const auto& [gpu, stream] : streams_) GCR_TRY(stream->synchronize());
  return {};
}

/// Creates all VRAM and uploads everything that has landed.
Status IncomingVram::fill(const Expected& expected) {
  for (auto& [id, buffer] : buffers_) {
    GCR_TRY(create_vram(id, buffer));
    const auto& digests = expected.at(id);
    for (std::size_t chunk = 0; chunk < digests.size(); ++chunk) {
      if (!buffer.landed[chunk]) continue;
      const std::uint64_t offset = chunk * kChunkBytes;
      GCR_TRY(upload(id, buffer, offset, std::min(kChunkBytes, buffer.size_bytes - offset)));
    }
  }
  return {};
}

/// Clears chunks that were sent once and are expected to be zeros now: zeros are never sent.
Status IncomingVram::settle_zeros(const Expected& expected) {
  const Zeros zeros(digester_->key());
  for (auto& [id, buffer] : buffers_) {
    const auto& digests = expected.at(id);
    for (std::size_t chunk = 0; chunk < digests.size(); ++chunk) {
      if (!buffer.landed[chunk]) continue;
      const std::uint64_t offset = chunk * kChunkBytes;
      const std::uint64_t length = std::min(kChunkBytes, buffer.size_bytes - offset);
      if (digests[chunk] == zeros.digest(length)) GCR_TRY(clear(id, buffer, offset, length));
    }
  }
  return {};
}

/// Corrupts one byte of VRAM; landing memory has the right content.
Status IncomingVram::spoil() {
  const Incoming& buffer = buffers_.begin()->second;
  return buffer.stream->fill(buffer.vram->address(), buffer.landing[0] ^ std::byte{1}, 1);
}

Result<std::uint64_t> IncomingVram::fill_and_verify(const Expected& expected) {
  for (const auto& [id, buffer] : buffers_) {
    const auto found = expected.find(id);
    if (found == expected.end() || found->second.size() != chunk_count(buffer.size_bytes)) {
      return Error(Code::kProtocol,
                   fmt::format("the source sent no complete digests for buffer {}", id.value));
    }
  }
  if (mode_ == Mode::kReload) GCR_TRY(fill(expected));
  GCR_TRY(settle_zeros(expected));
  if (fault::armed("destination.vram.corrupt")) GCR_TRY(spoil());
  GCR_TRY(synchronize());
  const std::vector<ChunkRef> chunks = chunks_of(buffers_);
  GCR_ASSIGN(const auto digests, digester_->digest(chunks));
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const ChunkRef& chunk = chunks[i];
    if (digests[i] == expected.at(chunk.buffer)[chunk.number()]) continue;
    return Error(Code::kDataLoss, fmt::format("buffer {} differs from what was sent, at {} of {}",
                                              chunk.buffer.value, format_bytes(chunk.offset),
                                              format_bytes(chunk.vram->size_bytes())));
  }
  return chunks.size();
}

Result<std::uint64_t> IncomingVram::free_bytes(const Uuid& gpu) {
  GCR_ASSIGN(const auto on, gpus_.on(gpu));
  return on->free_bytes();
}

}  // namespace gcr::mover
