#include "migrate-agent/mover/vram_digester.h"

#include <algorithm>

namespace gcr::mover {
namespace {

constexpr std::size_t kLeastCapacity = 1024;

ChunkInVram* descriptors_in(const PinnedBuffer& memory) {
  return reinterpret_cast<ChunkInVram*>(memory.bytes().data());
}

digest::Digest* digests_in(const PinnedBuffer& memory, std::size_t capacity) {
  return reinterpret_cast<digest::Digest*>(memory.bytes().data() + capacity * sizeof(ChunkInVram));
}

}  // namespace

Status VramDigester::prepare(const std::shared_ptr<GpuContext>& context, std::size_t chunks) {
  Gpu& gpu = gpus_[context.get()];
  if (gpu.digester == nullptr) {
    GCR_ASSIGN(auto digester, GpuDigester::create(context, key_));
    GCR_ASSIGN(auto stream, Stream::create(context));
    gpu.context = context;
    gpu.digester = std::make_unique<GpuDigester>(std::move(digester));
    gpu.stream = std::make_unique<Stream>(std::move(stream));
  }
  if (chunks <= gpu.capacity) return {};
  chunks = std::max({chunks, 2 * gpu.capacity, kLeastCapacity});
  GCR_ASSIGN(auto memory, PinnedBuffer::create(
                              context, chunks * (sizeof(ChunkInVram) + sizeof(digest::Digest))));
  gpu.memory = std::make_unique<PinnedBuffer>(std::move(memory));
  gpu.capacity = chunks;
  return {};
}

Status VramDigester::launch(Gpu& gpu, std::span<const ChunkRef> chunks) {
  if (gpu.indices.empty()) return {};
  GCR_TRY(prepare(gpu.context, gpu.indices.size()));
  ChunkInVram* descriptor = descriptors_in(*gpu.memory);
  for (const std::size_t index : gpu.indices) {
    *descriptor++ = {chunks[index].address(), chunks[index].length_bytes};
  }
  return gpu.digester->enqueue(descriptors_in(*gpu.memory), gpu.indices.size(),
                               digests_in(*gpu.memory, gpu.capacity), gpu.stream->get());
}

Result<std::vector<digest::Digest>> VramDigester::digest(std::span<const ChunkRef> chunks) {
  for (auto& [context, gpu] : gpus_) gpu.indices.clear();
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const auto& context = chunks[i].vram->shared_context();
    if (!gpus_.contains(context.get())) GCR_TRY(prepare(context, 0));
    gpus_.at(context.get()).indices.push_back(i);
  }
  Status status;
  for (auto& [context, gpu] : gpus_) {
    if (status) status = launch(gpu, chunks);
  }
  std::vector<digest::Digest> digests(chunks.size());
  for (auto& [context, gpu] : gpus_) {
    // Launched kernels have to end before their memory may be used again.
    const Status passed = gpu.stream->synchronize();
    if (status && !passed) status = passed.error().while_doing("cannot digest VRAM");
    if (!status) continue;
    const digest::Digest* found = gpu.memory ? digests_in(*gpu.memory, gpu.capacity) : nullptr;
    for (const std::size_t index : gpu.indices) digests[index] = *found++;
  }
  GCR_TRY(status);
  return digests;
}

}  // namespace gcr::mover
