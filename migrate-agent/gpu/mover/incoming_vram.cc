// How VRAM is filled. With prefill, prepare() creates VRAM full of zeros; a chunk lands in a place
// of the landing window, and a queue uploads it and frees the place. Without, chunks stay in
// landing memory as large as the buffers, and fill_and_verify() creates and fills VRAM; where VRAM
// is short, prepare() changes from the first way to the second, for the buffers that follow. Zeros
// are never sent, so a chunk that landed once and is zeros now is cleared at the end. Then the GPUs
// digest all VRAM, and every digest is compared with the sender's. Landing memory that is kept is
// digested by the CPU instead, and no VRAM is made.
#include "migrate-agent/gpu/mover/incoming_vram.h"

#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/base/fault/fault.h"
#include "src/base/side_by_side.h"

namespace gcr::mover {
namespace {

/// One receives, and the others are being uploaded.
constexpr std::uint64_t kPlacesPerLane = 4;

}  // namespace

void IncomingVram::begin(const digest::DigestKey& key, Mode mode, const WindowLimits& limits) {
  digester_.emplace(key);
  mode_ = mode;
  limits_ = limits;
}

std::uint64_t IncomingVram::WindowLimits::needed_for(std::uint64_t vram_bytes) const {
  const std::uint64_t least = lanes * kPlacesPerLane * transport::kPlaceBytes;
  return round_up(std::min(most_bytes, std::max(vram_bytes, least)), transport::kPlaceBytes);
}

void IncomingVram::let_go() {
  const std::lock_guard lock(lanes_mutex_);
  for (auto& [id, buffer] : buffers_) buffer.vram.reset();
}

Result<const IncomingVram::Streams*> IncomingVram::streams_of(device::Gpu& gpu) {
  const auto found = streams_.find(gpu.info().uuid);
  if (found != streams_.end()) return &found->second;
  Streams streams;
  GCR_ASSIGN(streams.own, gpu.stream());
  GCR_ASSIGN(streams.upload, gpu.stream());
  return &streams_.emplace(gpu.info().uuid, std::move(streams)).first->second;
}

Result<std::span<std::byte>> IncomingVram::host_memory(std::uint64_t bytes, const Uuid& gpu,
                                                       const Reserve& reserve) {
  const bool keeps = mode_ == Mode::kKeep;
  GCR_TRY(reserve(bytes));
  using Kind = hostmem::LandingRegion::Kind;
  GCR_ASSIGN(auto region, hostmem::LandingRegion::create(bytes, policy_, {},
                                                         keeps ? Kind::kFile : Kind::kMemory));
  if (!keeps) {
    GCR_ASSIGN(const auto opened, gpus_.on(gpu));
    GCR_ASSIGN(page_locked_.emplace_back(), opened->page_lock(region.bytes()));
  }
  if (note_.empty()) note_ = region.note();
  const auto memory = region.bytes();
  regions_.push_back(std::move(region));
  return memory;
}

/// Opens the window unless it is open.
Status IncomingVram::open_window(const std::vector<Wanted>& wanted, const Reserve& reserve) {
  if (!window_.empty() || wanted.empty()) return {};
  std::uint64_t total = 0;
  for (const Wanted& buffer : wanted) total += buffer.size_bytes;
  GCR_ASSIGN(window_, host_memory(limits_.needed_for(total), wanted.front().gpu, reserve));
  uploads_.emplace();
  return {};
}

/// Adds one piece of landing memory for the buffers that have no place in the free ones.
Status IncomingVram::take_landing_memory(const std::vector<Wanted>& wanted,
                                         const Reserve& reserve) {
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
  GCR_ASSIGN(const auto memory, host_memory(total, wanted.front().gpu, reserve));
  std::uint64_t at = 0;
  for (const std::uint64_t length : lengths) {
    free_.emplace(length, memory.subspan(at, length));
    at += length;
  }
  return {};
}

Result<IncomingVram::Incoming> IncomingVram::place(const Wanted& wanted) {
  const std::size_t chunks = chunk_count(wanted.size_bytes);
  Incoming buffer;
  buffer.size_bytes = wanted.size_bytes;
  buffer.host_node = wanted.host_node;
  buffer.region = next_region_++;
  buffer.landed = std::vector<std::atomic<bool>>(chunks);
  if (mode_ == Mode::kKeep) return buffer;
  GCR_ASSIGN(buffer.gpu, gpus_.on(wanted.gpu));
  GCR_ASSIGN(buffer.streams, streams_of(*buffer.gpu));
  if (mode_ == Mode::kPrefill) {
    if (Status created = create_vram(wanted.id, buffer); !created) return created.error();
    GCR_TRY(digester_->prepare(buffer.gpu, chunks));
  }
  return buffer;
}

/// Releases the VRAM of this call: it has all of it or none.
Status IncomingVram::turn_into_reload(std::string why, std::map<AllocationId, Incoming>& created) {
  note_ = std::move(why) + ": it is filled after the switchover";
  mode_ = Mode::kReload;
  GCR_TRY(synchronize());
  for (auto& [id, incoming] : created) incoming.vram.reset();
  return {};
}

/// Creates all buffers, without landing memory.
Result<std::map<AllocationId, IncomingVram::Incoming>> IncomingVram::create(
    const std::vector<Wanted>& wanted) {
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
  GCR_TRY(synchronize());  // full of zeros, before anything is uploaded on another stream
  return created;
}

Status IncomingVram::prepare(const std::vector<Wanted>& wanted, const Reserve& reserve) {
  GCR_ASSIGN(auto created, create(wanted));
  if (mode_ == Mode::kPrefill) {
    GCR_TRY(open_window(wanted, reserve));
  } else {
    GCR_TRY(take_landing_memory(wanted, reserve));
    for (auto& [id, buffer] : created) {
      const auto memory = free_.lower_bound(round_up(buffer.size_bytes, kChunkBytes));
      buffer.landing = memory->second.first(buffer.size_bytes);
      buffer.place = memory->second;
      free_.erase(memory);
    }
  }
  const std::lock_guard lock(lanes_mutex_);
  for (const auto& [id, buffer] : created) buffer_of_region_.emplace(buffer.region, id);
  buffers_.merge(created);
  return {};
}

void IncomingVram::remove(AllocationId id) {
  const auto found = buffers_.find(id);
  if (found == buffers_.end()) return;
  std::map<AllocationId, Incoming>::node_type removed;
  {
    const std::lock_guard lock(lanes_mutex_);
    buffer_of_region_.erase(found->second.region);
    removed = buffers_.extract(found);
  }
  if (uploads_) (void)uploads_->drain();  // the next arrived() returns its error
  const auto place = removed.mapped().place;
  if (!place.empty()) free_.emplace(place.size(), place);
}

IncomingVram::Region IncomingVram::region(AllocationId id) const {
  const Incoming& buffer = buffers_.at(id);
  return {buffer.region, buffer.size_bytes, buffer.landing};
}

transport::LandingWindow IncomingVram::window() {
  return {window_,
          [this](transport::RegionId region, std::uint64_t offset, transport::Place place) {
            return arrived(region, offset, std::move(place));
          }};
}

Status IncomingVram::create_vram(AllocationId id, Incoming& buffer) {
  GCR_ASSIGN(buffer.vram, buffer.gpu->create(buffer.size_bytes, buffer.host_node));
  return clear(id, buffer, 0, buffer.size_bytes);
}

Status IncomingVram::clear(AllocationId id, const Incoming& buffer, std::uint64_t offset,
                           std::uint64_t length) {
  const Status filled =
      buffer.streams->own->fill(buffer.vram->address() + offset, std::byte{0}, length);
  if (filled) return {};
  return filled.error().while_doing(
      fmt::format("cannot clear {} of buffer {}", format_bytes(length), id.value));
}

Status IncomingVram::upload(const Incoming& buffer, const ChunkRef& chunk) {
  const Status copied =
      buffer.streams->own->copy_in(buffer.vram->address() + chunk.offset,
                                   buffer.landing.data() + chunk.offset, chunk.length_bytes);
  if (copied) return {};
  return copied.error().while_doing(fmt::format(
      "cannot upload {} to buffer {}", format_bytes(chunk.length_bytes), chunk.buffer.value));
}

/// The buffer of a region, whose chunks have landed; null if it was removed. lanes_mutex_ is held.
IncomingVram::Incoming* IncomingVram::mark_landed(transport::RegionId region, std::uint64_t offset,
                                                  std::uint64_t length_bytes) {
  const auto found = buffer_of_region_.find(region);
  if (found == buffer_of_region_.end()) return nullptr;
  Incoming& buffer = buffers_.at(found->second);
  const std::uint64_t end = offset + length_bytes;
  for (std::uint64_t chunk = offset / kChunkBytes; chunk * kChunkBytes < end; ++chunk) {
    buffer.landed[chunk].store(true, std::memory_order_relaxed);
  }
  return &buffer;
}

Status IncomingVram::landed(transport::RegionId region, std::uint64_t offset,
                            std::uint64_t length_bytes) {
  const std::lock_guard lock(lanes_mutex_);
  Incoming* const buffer = mark_landed(region, offset, length_bytes);
  if (buffer == nullptr) return {};
  if (fault::armed("destination.landing.corrupt")) buffer->landing[offset] ^= std::byte{1};
  return {};
}

Status IncomingVram::arrived(transport::RegionId region, std::uint64_t offset,
                             transport::Place place) {
  if (fault::armed("destination.landing.corrupt")) place.bytes().front() ^= std::byte{1};
  const std::lock_guard lock(lanes_mutex_);
  const Incoming* const buffer = mark_landed(region, offset, place.bytes().size());
  if (buffer == nullptr) return {};
  return uploads_->add(*buffer->streams->upload, buffer->vram->address() + offset,
                       std::move(place));
}

Status IncomingVram::synchronize() const {
  for (const auto& [gpu, streams] : streams_) GCR_TRY(streams.own->synchronize());
  return {};
}

/// Creates the VRAM of buffers with landing memory, and uploads everything that has landed there.
Status IncomingVram::fill() {
  for (auto& [id, buffer] : buffers_) {
    if (buffer.landing.empty()) continue;
    GCR_TRY(create_vram(id, buffer));
    for (const ChunkRef& chunk : chunks_of(id, buffer.size_bytes)) {
      if (buffer.landed[chunk.number()]) GCR_TRY(upload(buffer, chunk));
    }
  }
  return {};
}

/// Clears chunks that were sent once and are expected to be zeros now: zeros are never sent.
Status IncomingVram::clear_zeros(const VramDigests& expected) {
  for (const auto& [id, buffer] : buffers_) {
    const auto& digests = expected.at(id);
    for (const ChunkRef& chunk : chunks_of(id, buffer.size_bytes)) {
      if (!buffer.landed[chunk.number()]) continue;
      const auto zeros = digest::digest_zeros(digester_->key(), chunk.length_bytes);
      if (digests[chunk.number()] != zeros) continue;
      GCR_TRY(clear(id, buffer, chunk.offset, chunk.length_bytes));
    }
  }
  return {};
}

/// For tests: VRAM differs from what has landed.
Status IncomingVram::corrupt_first_byte() {
  const Incoming& buffer = buffers_.begin()->second;
  std::byte content{};
  GCR_TRY(buffer.streams->own->copy_out(&content, buffer.vram->address(), 1));
  GCR_TRY(synchronize());
  return buffer.streams->own->fill(buffer.vram->address(), content ^ std::byte{1}, 1);
}

namespace {

Error differs(const ChunkRef& chunk, std::uint64_t size_bytes) {
  return {Code::kDataLoss,
          fmt::format("buffer {} differs from what was sent, at {} of {}", chunk.buffer.value,
                      format_bytes(chunk.offset), format_bytes(size_bytes))};
}

}  // namespace

/// Compares the digests of landing memory, on the CPU.
Result<std::uint64_t> IncomingVram::verify_landing(const VramDigests& expected) const {
  const std::vector<ChunkRef> chunks = chunks_by_size(buffers_);
  GCR_TRY(share_out(chunks.size(), chunks.size(), [&](std::size_t i) -> Status {
    const ChunkRef& chunk = chunks[i];
    const auto landing = buffers_.at(chunk.buffer).landing;
    const auto now =
        digest::digest_chunk(digester_->key(), landing.subspan(chunk.offset, chunk.length_bytes));
    if (now == expected.at(chunk.buffer)[chunk.number()]) return {};
    return differs(chunk, landing.size());
  }));
  return chunks.size();
}

IncomingVram::Kept IncomingVram::kept(AllocationId id) const {
  const std::byte* const at = buffers_.at(id).landing.data();
  const auto region = std::ranges::find_if(regions_, [at](const hostmem::LandingRegion& one) {
    return at >= one.bytes().data() && at < one.bytes().data() + one.bytes().size();
  });
  return {static_cast<std::size_t>(region - regions_.begin()),
          static_cast<std::uint64_t>(at - region->bytes().data())};
}

Result<std::uint64_t> IncomingVram::fill_and_verify(const VramDigests& expected) {
  for (const auto& [id, buffer] : buffers_) {
    const auto found = expected.find(id);
    if (found == expected.end() || found->second.size() != chunk_count(buffer.size_bytes)) {
      return Error(Code::kProtocol,
                   fmt::format("the source sent no complete digests for buffer {}", id.value));
    }
  }
  if (mode_ == Mode::kKeep) return verify_landing(expected);
  if (uploads_) GCR_TRY(uploads_->drain());
  GCR_TRY(fill());
  GCR_TRY(clear_zeros(expected));
  if (fault::armed("destination.vram.corrupt")) GCR_TRY(corrupt_first_byte());
  GCR_TRY(synchronize());
  const std::vector<VramChunk> chunks = chunks_of(buffers_);
  GCR_ASSIGN(const auto digests, digester_->digest(chunks));
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const VramChunk& chunk = chunks[i];
    if (digests[i] == expected.at(chunk.buffer)[chunk.number()]) continue;
    return differs(chunk, chunk.vram->size_bytes());
  }
  return chunks.size();
}

Result<std::uint64_t> IncomingVram::free_bytes(const Uuid& gpu) {
  GCR_ASSIGN(const auto on, gpus_.on(gpu));
  return on->free_bytes();
}

}  // namespace gcr::mover
