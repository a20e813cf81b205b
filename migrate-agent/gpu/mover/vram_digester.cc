// One launch for each GPU digests all chunks that lie there. The launch reads the chunks' addresses
// from page-locked memory and writes the digests behind them, so nothing else is copied. All GPUs
// are started before the first is waited for.
#include "migrate-agent/gpu/mover/vram_digester.h"

#include <algorithm>

namespace gcr::mover {
namespace {

constexpr std::size_t kLeastCapacity = 1024;

device::Chunk* descriptors_in(const device::HostMemory& memory) {
  return reinterpret_cast<device::Chunk*>(memory.bytes().data());
}

digest::Digest* digests_in(const device::HostMemory& memory, std::size_t capacity) {
  return reinterpret_cast<digest::Digest*>(memory.bytes().data() +
                                           capacity * sizeof(device::Chunk));
}

/// The same memory at its address on the GPU.
template <class Any>
Any* on_gpu(const device::HostMemory& memory, std::size_t offset = 0) {
  return reinterpret_cast<Any*>(memory.address() + offset);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

Status VramDigester::prepare(const std::shared_ptr<device::Gpu>& on, std::size_t chunks) {
  auto found = gpus_.find(on.get());
  if (found == gpus_.end()) {
    Place made;
    made.gpu = on;
    GCR_ASSIGN(made.digester, on->digester(key_));
    GCR_ASSIGN(made.stream, on->stream());
    found = gpus_.emplace(on.get(), std::move(made)).first;
  }
  Place& place = found->second;
  if (chunks <= place.capacity) return {};
  chunks = std::max({chunks, 2 * place.capacity, kLeastCapacity});
  GCR_ASSIGN(place.memory, on->pinned(chunks * (sizeof(device::Chunk) + sizeof(digest::Digest))));
  place.capacity = chunks;
  return {};
}

Status VramDigester::launch(Place& place, std::span<const VramChunk> chunks) {
  if (place.indices.empty()) return {};
  GCR_TRY(prepare(place.gpu, place.indices.size()));
  device::Chunk* descriptor = descriptors_in(*place.memory);
  for (const std::size_t index : place.indices) {
    *descriptor++ = {chunks[index].address(), chunks[index].length_bytes};
  }
  return place.digester->enqueue(
      on_gpu<device::Chunk>(*place.memory), place.indices.size(),
      on_gpu<digest::Digest>(*place.memory, place.capacity * sizeof(device::Chunk)), *place.stream);
}

Result<std::vector<digest::Digest>> VramDigester::digest(std::span<const VramChunk> chunks) {
  for (auto& [gpu, place] : gpus_) place.indices.clear();
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    device::Gpu& gpu = chunks[i].vram->gpu();
    if (!gpus_.contains(&gpu)) GCR_TRY(prepare(gpu.shared_from_this(), 0));
    gpus_.at(&gpu).indices.push_back(i);
  }
  Status status;
  for (auto& [gpu, place] : gpus_) {
    if (status) status = launch(place, chunks);
  }
  std::vector<digest::Digest> digests(chunks.size());
  for (auto& [gpu, place] : gpus_) {
    // Launched kernels have to end before their memory may be used again.
    const Status passed = place.stream->synchronize();
    if (status && !passed) status = passed.error().while_doing("cannot digest VRAM");
    if (!status) continue;
    const digest::Digest* found =
        place.memory ? digests_in(*place.memory, place.capacity) : nullptr;
    for (const std::size_t index : place.indices) digests[index] = *found++;
  }
  GCR_TRY(status);
  return digests;
}

}  // namespace gcr::mover
