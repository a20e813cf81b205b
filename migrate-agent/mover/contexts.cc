#include "migrate-agent/mover/contexts.h"

#include <fmt/format.h>

#include <algorithm>

namespace gcr::mover {

Result<std::shared_ptr<GpuContext>> Contexts::on(const Uuid& gpu) {
  if (const auto found = contexts_.find(gpu); found != contexts_.end()) return found->second;
  const GpuInfo* info = driver_->find_gpu(gpu);
  if (info == nullptr) {
    return Error(Code::kNotFound, fmt::format("this host has no GPU-{}", gpu.to_string()));
  }
  GCR_ASSIGN(auto context, GpuContext::create(driver_, *info));
  contexts_.emplace(gpu, context);
  return context;
}

void append_chunks(std::vector<ChunkRef>& chunks, BufferId buffer, const Vram& vram) {
  for (std::uint64_t at = 0; at < vram.size_bytes(); at += kChunkBytes) {
    const std::uint64_t length = std::min(kChunkBytes, vram.size_bytes() - at);
    chunks.push_back({&vram, buffer, at, static_cast<std::uint32_t>(length)});
  }
}

}  // namespace gcr::mover
