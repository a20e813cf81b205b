#include "migrate-agent/migration/suspend/returning_vram.h"

#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/gpu/mover/vram_digester.h"
#include "migrate-agent/migration/suspend/bus_copy.h"

namespace gcr::migration {
namespace {

Uuid place_of(const Uuid& gpu, const std::vector<device::GpuPair>& gpus) {
  const auto found = std::ranges::find(gpus, gpu, &device::GpuPair::from);
  return found == gpus.end() ? gpu : found->to;
}

}  // namespace

std::vector<mover::MappableGpu> ReturningVram::origins() const {
  std::vector<mover::MappableGpu> gpus;
  for (const proto::Gpu& gpu : copy_.description().gpus()) {
    if (gpu.has_amd()) continue;
    gpus.push_back(
        {.uuid = to_uuid(gpu.uuid()), .name = gpu.name(), .total_bytes = gpu.total_bytes()});
  }
  return gpus;
}

std::map<Uuid, std::uint64_t> ReturningVram::needs() const {
  std::map<Uuid, std::uint64_t> bytes;
  for (const gpu::KeptBuffer& kept : copy_.description().buffers()) {
    const std::uint64_t size = kept.buffer().has_host_node() ? 0 : kept.buffer().size_bytes();
    bytes[to_uuid(kept.buffer().gpu_uuid())] += size;
  }
  return bytes;
}

Status ReturningVram::create(const std::shared_ptr<const device::Driver>& driver,
                             const std::vector<device::GpuPair>& gpus) {
  device::Gpus opened(driver);
  for (const gpu::KeptBuffer& kept : copy_.description().buffers()) {
    const proto::Buffer& buffer = kept.buffer();
    GCR_ASSIGN(const auto gpu, opened.on(place_of(to_uuid(buffer.gpu_uuid()), gpus)));
    const auto node = buffer.has_host_node() ? std::optional(buffer.host_node()) : std::nullopt;
    auto vram = gpu->create(buffer.size_bytes(), node);
    if (!vram) return vram.error().while_doing(fmt::format("cannot make buffer {}", buffer.id()));
    buffers_.emplace(gpu::AllocationId{buffer.id()}, Buffer{std::move(*vram), &kept});
  }
  return {};
}

Status ReturningVram::fill() {
  std::vector<CopiedBuffer> copied;
  for (const auto& [id, buffer] : buffers_) {
    copied.push_back({buffer.vram.get(), copy_.content(*buffer.kept)});
  }
  return copy_in(copied);
}

Status ReturningVram::verify() {
  mover::VramDigester digester(digest::DigestKey::expand(copy_.digest_key()));
  const std::vector<mover::ChunkRef> chunks = mover::chunks_of(buffers_);
  GCR_ASSIGN(const auto digests, digester.digest(chunks));
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    GCR_TRY(gpu::KeptVram::check_digest(*buffers_.at(chunks[i].buffer).kept, chunks[i].number(),
                                        digests[i]));
  }
  return {};
}

Status ReturningVram::hand_over(keeper::Keeper& keeper) const {
  std::vector<UniqueFd> descriptors;
  std::vector<keeper::BufferDescriptor> kept;
  for (const auto& [id, buffer] : buffers_) {
    GCR_ASSIGN(UniqueFd descriptor, buffer.vram->duplicate_descriptor());
    for (const proto::Mapping& mapping : buffer.kept->buffer().mapped_by()) {
      kept.push_back({{{mapping.member()}, mapping.local_id()}, descriptor.get()});
    }
    descriptors.push_back(std::move(descriptor));
  }
  return keeper.arm(kept);
}

}  // namespace gcr::migration
