#include "migrate-agent/gpu/host_copy/bus_copy.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <thread>

#include "src/base/side_by_side.h"
#include "src/base/units.h"

namespace gcr::gpu {
namespace {

constexpr std::size_t kPieceBytes = 256 * kMiB;

/// Threads that fill page-locked stages for copies into VRAM: each copies 5 to 10 GB/s into one.
constexpr std::size_t kInThreads = 12;
constexpr std::size_t kStageBytes = 4 * kMiB;

/// A stream of each GPU, made when it is first needed.
class Streams {
 public:
  Result<device::Stream*> on(device::Gpu& gpu) {
    auto& stream = streams_[&gpu];
    if (stream != nullptr) return stream.get();
    GCR_ASSIGN(stream, gpu.stream());
    return stream.get();
  }

  Status synchronize() {
    Status all;
    for (const auto& [gpu, stream] : streams_) {
      const Status one = stream->synchronize();
      if (all) all = one;
    }
    return all;
  }

 private:
  std::map<device::Gpu*, std::unique_ptr<device::Stream>> streams_;
};

Status enqueue_out(const CopiedBuffer& buffer, std::span<std::byte> piece, Streams& streams) {
  std::byte* const from = std::max(buffer.host.data(), piece.data());
  std::byte* const to =
      std::min(buffer.host.data() + buffer.host.size(), piece.data() + piece.size());
  if (from >= to) return {};
  GCR_ASSIGN(device::Stream* const stream, streams.on(buffer.vram->gpu()));
  const auto offset = static_cast<std::uint64_t>(from - buffer.host.data());
  return stream->copy_out(from, buffer.vram->address() + offset,
                          static_cast<std::uint64_t>(to - from));
}

/// A part of a buffer that goes through one stage.
struct Portion {
  const CopiedBuffer* buffer = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

std::vector<Portion> portions_of(std::span<const CopiedBuffer> buffers) {
  std::vector<Portion> portions;
  for (const CopiedBuffer& buffer : buffers) {
    for (std::uint64_t at = 0; at < buffer.host.size(); at += kStageBytes) {
      portions.push_back({&buffer, at, std::min(kStageBytes, buffer.host.size() - at)});
    }
  }
  return portions;
}

/// Page-locked memory. It is filled again once the GPU has read what it held.
class Stage {
 public:
  Status open(device::Gpu& gpu) {
    GCR_ASSIGN(memory_, gpu.pinned(kStageBytes));
    return {};
  }

  Status send(const Portion& portion) {
    GCR_TRY(streams_.synchronize());
    GCR_ASSIGN(device::Stream* const stream, streams_.on(portion.buffer->vram->gpu()));
    std::memcpy(memory_->bytes().data(), portion.buffer->host.data() + portion.offset,
                portion.bytes);
    return stream->copy_in(portion.buffer->vram->address() + portion.offset,
                           memory_->bytes().data(), portion.bytes);
  }

  Status synchronize() { return streams_.synchronize(); }

 private:
  std::unique_ptr<device::HostMemory> memory_;
  Streams streams_;
};

/// The work of one thread: while the GPU reads one stage, the thread fills the other.
Status send_in_turn(std::span<const Portion> portions, std::atomic<std::size_t>& next) {
  std::array<Stage, 2> stages;
  for (Stage& stage : stages) GCR_TRY(stage.open(portions.front().buffer->vram->gpu()));
  Status sent;
  for (std::size_t turn = 0, i = next++; sent && i < portions.size(); ++turn, i = next++) {
    sent = stages[turn % stages.size()].send(portions[i]);
  }
  for (Stage& stage : stages) {
    const Status taken = stage.synchronize();
    if (sent) sent = taken;
  }
  if (!sent) next = portions.size();
  return sent;
}

}  // namespace

std::vector<std::span<std::byte>> pieces_of(std::span<std::byte> memory) {
  std::vector<std::span<std::byte>> pieces;
  for (std::size_t at = 0; at < memory.size(); at += kPieceBytes) {
    pieces.push_back(memory.subspan(at, std::min(kPieceBytes, memory.size() - at)));
  }
  return pieces;
}

Status copy_out(std::span<const CopiedBuffer> buffers, std::span<std::byte> piece) {
  Streams streams;
  Status enqueued;
  for (const CopiedBuffer& buffer : buffers) {
    if (enqueued) enqueued = enqueue_out(buffer, piece, streams);
  }
  const Status copied = streams.synchronize();
  return enqueued ? copied : enqueued;
}

Status copy_in(std::span<const CopiedBuffer> buffers) {
  const std::vector<Portion> portions = portions_of(buffers);
  const std::size_t processors = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::size_t> threads(std::min({portions.size(), kInThreads, processors}));
  std::atomic<std::size_t> next{0};
  return side_by_side(threads, [&](std::size_t) { return send_in_turn(portions, next); });
}

}  // namespace gcr::gpu
