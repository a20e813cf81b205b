// How a round works: find_dirty() digests all VRAM in place, on the GPUs, and lists the chunks
// whose digest is not the one that was last sent. send() copies these aside inside the GPU, digests
// the copies, and sends them (snapshot_reader.h): the digest that is remembered is always that of
// the bytes that were sent. A chunk that the application changes meanwhile is dirty in the next
// round.
#include "migrate-agent/gpu/mover/outgoing_vram.h"

#include <fmt/format.h>

namespace gcr::mover {

Status OutgoingVram::add(AllocationId id, const Uuid& gpu, std::uint64_t size_bytes,
                         UniqueFd descriptor) {
  GCR_ASSIGN(const auto on, gpus_.on(gpu));
  GCR_TRY(reader_.prepare(on));
  auto vram = on->import(std::move(descriptor), size_bytes);
  if (!vram) return vram.error().while_doing(fmt::format("cannot take over buffer {}", id.value));
  sender_.add(id, size_bytes);
  buffers_.emplace(id, Buffer{std::move(*vram)});
  total_bytes_ += size_bytes;
  return digester_.prepare(on, chunk_count(total_bytes_) + buffers_.size());
}

void OutgoingVram::remove(AllocationId id) {
  const auto found = buffers_.find(id);
  if (found == buffers_.end()) return;
  total_bytes_ -= found->second.vram->size_bytes();
  buffers_.erase(found);
  sender_.remove(id);
}

Result<OutgoingVram::Dirty> OutgoingVram::find_dirty(ChunkTarget& target) {
  const std::vector<VramChunk> chunks = chunks_of(buffers_);
  GCR_ASSIGN(const auto digests, digester_.digest(chunks));
  Dirty dirty;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (sender_.is_zeros(chunks[i], digests[i])) ++dirty.zero_chunks;
    const ChunkSender::Step step = sender_.settle(chunks[i], digests[i], target);
    if (step == ChunkSender::Step::kCleared) ++dirty.cleared_chunks;
    if (step != ChunkSender::Step::kSend) continue;
    dirty.bytes += chunks[i].length_bytes;
    dirty.chunks.push_back(chunks[i]);
  }
  return dirty;
}

Result<VramDigests> OutgoingVram::digest_now() {
  const std::vector<VramChunk> chunks = chunks_of(buffers_);
  GCR_ASSIGN(const auto digests, digester_.digest(chunks));
  VramDigests of_buffers;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    of_buffers[chunks[i].buffer].push_back(digests[i]);
  }
  return of_buffers;
}

/// The reader's memory never moves, and grows at its end.
Status OutgoingVram::add_sources(transport::Channel& channel) {
  const auto memory = reader_.memory();
  for (; sources_ < memory.size(); ++sources_) GCR_TRY(channel.add_source(memory[sources_]));
  return {};
}

Result<std::uint64_t> OutgoingVram::send(const Dirty& dirty, ChunkTarget& target) {
  GCR_TRY(add_sources(target.channel()));
  return sender_.send(
      [&](unsigned threads, const ChunkSink& sink) {
        return reader_.read(dirty.chunks, threads, sink);
      },
      target);
}

}  // namespace gcr::mover
