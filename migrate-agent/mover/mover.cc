#include "migrate-agent/mover/mover.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "migrate-agent/mover/chunk_reader.h"
#include "src/base/units.h"

namespace gcr::mover {
namespace {

std::uint64_t chunk_count(std::uint64_t size_bytes) {
  return round_up(size_bytes, kChunkBytes) / kChunkBytes;
}

template <class Buffers>
Result<Descriptors> duplicate_all(const Buffers& buffers) {
  Descriptors descriptors;
  for (const auto& [id, buffer] : buffers) {
    GCR_ASSIGN(UniqueFd descriptor, buffer.vram.duplicate_descriptor());
    descriptors.emplace_back(id, std::move(descriptor));
  }
  return descriptors;
}

}  // namespace

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

Status OutgoingVram::add(BufferId id, const Uuid& gpu, std::uint64_t size_bytes,
                         UniqueFd descriptor) {
  GCR_ASSIGN(auto context, contexts_.on(gpu));
  auto vram = Vram::import(std::move(context), std::move(descriptor), size_bytes);
  if (!vram) return vram.error().while_doing(fmt::format("cannot take over buffer {}", id));
  buffers_.emplace(id, Outgoing{.vram = std::move(*vram),
                                .region = 0,
                                .digests = std::vector<digest::Digest>(chunk_count(size_bytes))});
  return {};
}

void OutgoingVram::assign(BufferId id, transport::RegionId region) {
  buffers_.at(id).region = region;
}

Status OutgoingVram::send(transport::Channel& channel, const digest::DigestKey& key) {
  std::vector<const Vram*> vram;
  std::vector<Outgoing*> buffers;
  for (auto& [id, buffer] : buffers_) {
    vram.push_back(&buffer.vram);
    buffers.push_back(&buffer);
  }
  GCR_TRY(read_chunks(
      vram, channel.lanes(),
      [&](std::size_t index, std::uint64_t offset, std::span<const std::byte> bytes) -> Status {
        Outgoing& buffer = *buffers[index];
        buffer.digests[offset / kChunkBytes] = digest::digest_chunk(key, bytes);
        return channel.write(buffer.region, offset, bytes);
      }));
  return channel.flush();
}

std::map<BufferId, std::vector<digest::Digest>> OutgoingVram::digests() const {
  std::map<BufferId, std::vector<digest::Digest>> digests;
  for (const auto& [id, buffer] : buffers_) digests.emplace(id, buffer.digests);
  return digests;
}

Result<Descriptors> OutgoingVram::descriptors() const { return duplicate_all(buffers_); }

std::uint64_t OutgoingVram::total_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [id, buffer] : buffers_) total += buffer.vram.size_bytes();
  return total;
}

Status IncomingVram::prepare_streams(const std::vector<Wanted>& wanted) {
  for (const Wanted& buffer : wanted) {
    if (streams_.contains(buffer.gpu)) continue;
    GCR_ASSIGN(auto context, contexts_.on(buffer.gpu));
    GCR_ASSIGN(Stream stream, Stream::create(std::move(context)));
    streams_.emplace(buffer.gpu, std::move(stream));
  }
  return {};
}

Status IncomingVram::prepare(const std::vector<Wanted>& wanted) {
  if (wanted.empty()) return {};
  GCR_TRY(prepare_streams(wanted));
  std::uint64_t total = 0;
  for (const Wanted& buffer : wanted) total += round_up(buffer.size_bytes, kChunkBytes);
  GCR_ASSIGN(auto region, landing::LandingRegion::create(total, policy_));
  GCR_ASSIGN(auto context, contexts_.on(wanted.front().gpu));
  GCR_ASSIGN(auto registered, RegisteredMemory::create(std::move(context), region.bytes()));
  std::map<BufferId, Incoming> created;
  std::uint64_t at = 0;
  for (const Wanted& buffer : wanted) {
    GCR_ASSIGN(auto gpu_context, contexts_.on(buffer.gpu));
    auto vram = Vram::create(std::move(gpu_context), buffer.size_bytes);
    if (!vram) return vram.error().while_doing(fmt::format("cannot prepare buffer {}", buffer.id));
    const auto landing = region.bytes().subspan(at, buffer.size_bytes);
    created.emplace(buffer.id, Incoming{std::move(*vram), landing, &streams_.at(buffer.gpu)});
    at += round_up(buffer.size_bytes, kChunkBytes);
  }
  buffers_.merge(created);
  regions_.push_back(std::move(region));
  registered_.push_back(std::move(registered));
  return {};
}

Status IncomingVram::upload(BufferId id, std::uint64_t offset, std::uint64_t length_bytes) {
  const Incoming& buffer = buffers_.at(id);
  const CudaDriver& driver = contexts_.driver();
  GCR_TRY(buffer.vram.context().enter());
  return driver.check(
      driver.cuMemcpyHtoDAsync_v2(buffer.vram.address() + offset, buffer.landing.data() + offset,
                                  length_bytes, buffer.stream->get()),
      fmt::format("cannot upload {} to buffer {}", format_bytes(length_bytes), id));
}

Result<std::uint64_t> IncomingVram::verify(
    const digest::DigestKey& key, const std::map<BufferId, std::vector<digest::Digest>>& sent) {
  for (const auto& [gpu, stream] : streams_) GCR_TRY(stream.synchronize());
  std::vector<const Vram*> vram;
  std::vector<std::pair<BufferId, const std::vector<digest::Digest>*>> expected;
  for (const auto& [id, buffer] : buffers_) {
    const auto found = sent.find(id);
    if (found == sent.end() || found->second.size() != chunk_count(buffer.vram.size_bytes())) {
      return Error(Code::kProtocol,
                   fmt::format("the source sent no complete digests for buffer {}", id));
    }
    vram.push_back(&buffer.vram);
    expected.emplace_back(id, &found->second);
  }
  std::atomic<std::uint64_t> compared = 0;
  GCR_TRY(read_chunks(
      vram, std::clamp(std::thread::hardware_concurrency(), 1U, 16U),
      [&](std::size_t index, std::uint64_t offset, std::span<const std::byte> bytes) -> Status {
        const auto& [id, digests] = expected[index];
        ++compared;
        if (digest::digest_chunk(key, bytes) == (*digests)[offset / kChunkBytes]) return {};
        return Error(Code::kDataLoss,
                     fmt::format("buffer {} differs from what was sent, at {} of {}", id,
                                 format_bytes(offset), format_bytes(vram[index]->size_bytes())));
      }));
  return compared.load();
}

Result<Descriptors> IncomingVram::descriptors() const { return duplicate_all(buffers_); }

Result<std::uint64_t> IncomingVram::free_bytes(const Uuid& gpu) {
  GCR_ASSIGN(auto context, contexts_.on(gpu));
  return context->free_bytes();
}

std::string IncomingVram::note() const {
  for (const landing::LandingRegion& region : regions_) {
    if (!region.huge()) return region.note();
  }
  return {};
}

}  // namespace gcr::mover
