#include "migrate-agent/gpu/mover/outgoing_vram.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "migrate-agent/base/fault/fault.h"

namespace gcr::mover {

Status OutgoingVram::add(AllocationId id, const Uuid& gpu, std::uint64_t size_bytes,
                         UniqueFd descriptor) {
  GCR_ASSIGN(const auto on, gpus_.on(gpu));
  GCR_TRY(reader_.prepare(on));
  auto vram = on->import(std::move(descriptor), size_bytes);
  if (!vram) return vram.error().while_doing(fmt::format("cannot take over buffer {}", id.value));
  Outgoing buffer{.vram = std::move(*vram), .region = 0, .sent = {}};
  for (std::uint64_t at = 0; at < size_bytes; at += kChunkBytes) {
    buffer.sent.push_back(zeros_.digest(std::min(kChunkBytes, size_bytes - at)));
  }
  buffers_.emplace(id, std::move(buffer));
  total_bytes_ += size_bytes;
  return digester_.prepare(on, chunk_count(total_bytes_) + buffers_.size());
}

void OutgoingVram::remove(AllocationId id) {
  const auto found = buffers_.find(id);
  if (found == buffers_.end()) return;
  total_bytes_ -= found->second.vram->size_bytes();
  buffers_.erase(found);
}

void OutgoingVram::assign(AllocationId id, transport::RegionId region) {
  buffers_.at(id).region = region;
}

Result<OutgoingVram::Dirty> OutgoingVram::find_dirty() {
  const std::vector<ChunkRef> chunks = chunks_of(buffers_);
  GCR_ASSIGN(const auto digests, digester_.digest(chunks));
  Dirty dirty;
  dirty.total_chunks = chunks.size();
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    Outgoing& buffer = buffers_.at(chunks[i].buffer);
    digest::Digest& last = buffer.sent[chunks[i].number()];
    const bool zeros = digests[i] == zeros_.digest(chunks[i].length_bytes);
    if (zeros) ++dirty.zero_chunks;
    if (digests[i] == last) continue;
    if (zeros) {
      last = digests[i];
      ++dirty.cleared_chunks;
      continue;
    }
    const ChunkRef& chunk = chunks[i];
    if (has_chunk_ && has_chunk_(buffer.region, chunk.offset, digests[i], chunk.length_bytes)) {
      last = digests[i];
      ++dirty.known_chunks;
      continue;
    }
    dirty.bytes += chunks[i].length_bytes;
    dirty.chunks.push_back(chunks[i]);
  }
  return dirty;
}

Result<std::map<AllocationId, std::vector<digest::Digest>>> OutgoingVram::digest_now() {
  const std::vector<ChunkRef> chunks = chunks_of(buffers_);
  GCR_ASSIGN(const auto digests, digester_.digest(chunks));
  std::map<AllocationId, std::vector<digest::Digest>> of_buffers;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    of_buffers[chunks[i].buffer].push_back(digests[i]);
  }
  return of_buffers;
}

namespace {

Status write(transport::Channel& channel, transport::RegionId region, std::uint64_t offset,
             std::span<const std::byte> bytes) {
  if (!fault::armed("source.chunk.corrupt")) return channel.write(region, offset, bytes);
  std::vector<std::byte> spoilt(bytes.begin(), bytes.end());
  spoilt.back() ^= std::byte{1};
  return channel.write(region, offset, spoilt);
}

}  // namespace

/// The reader's memory never moves, and grows at its end.
Status OutgoingVram::add_sources(transport::Channel& channel) {
  const auto memory = reader_.memory();
  for (; sources_ < memory.size(); ++sources_) GCR_TRY(channel.add_source(memory[sources_]));
  return {};
}

Result<std::uint64_t> OutgoingVram::send(const Dirty& dirty, transport::Channel& channel) {
  std::atomic<std::uint64_t> sent_bytes = 0;
  GCR_TRY(add_sources(channel));
  GCR_TRY(reader_.read(dirty.chunks, channel.useful_writers(),
                       [&](const ChunkRef& chunk, const digest::Digest& digest,
                           std::span<const std::byte> bytes) -> Status {
                         Outgoing& buffer = buffers_.at(chunk.buffer);
                         digest::Digest& last = buffer.sent[chunk.number()];
                         if (digest == last) return {};  // it has changed back
                         if (digest != zeros_.digest(bytes.size())) {
                           GCR_TRY(write(channel, buffer.region, chunk.offset, bytes));
                           sent_bytes += bytes.size();
                         }
                         last = digest;
                         return {};
                       }));
  GCR_TRY(channel.flush());
  return sent_bytes.load();
}

std::map<AllocationId, std::vector<digest::Digest>> OutgoingVram::digests() const {
  std::map<AllocationId, std::vector<digest::Digest>> digests;
  for (const auto& [id, buffer] : buffers_) digests.emplace(id, buffer.sent);
  return digests;
}

}  // namespace gcr::mover
