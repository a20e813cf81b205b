#include "migrate-agent/suspension/bus_copy.h"

#include <algorithm>
#include <map>
#include <memory>

#include "src/base/units.h"

namespace gcr::agent {
namespace {

constexpr std::size_t kPieceBytes = 256 * kMiB;

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

Status enqueue(const CopiedBuffer& buffer, std::span<std::byte> piece, Direction direction,
               Streams& streams) {
  std::byte* const from = std::max(buffer.host.data(), piece.data());
  std::byte* const to =
      std::min(buffer.host.data() + buffer.host.size(), piece.data() + piece.size());
  if (from >= to) return {};
  GCR_ASSIGN(device::Stream* const stream, streams.on(buffer.vram->gpu()));
  const auto bytes = static_cast<std::uint64_t>(to - from);
  const device::Address vram =
      buffer.vram->address() + static_cast<std::uint64_t>(from - buffer.host.data());
  return direction == Direction::kOut ? stream->copy_out(from, vram, bytes)
                                      : stream->copy_in(vram, from, bytes);
}

}  // namespace

std::vector<std::span<std::byte>> pieces_of(std::span<std::byte> memory) {
  std::vector<std::span<std::byte>> pieces;
  for (std::size_t at = 0; at < memory.size(); at += kPieceBytes) {
    pieces.push_back(memory.subspan(at, std::min(kPieceBytes, memory.size() - at)));
  }
  return pieces;
}

Status copy_piece(std::span<const CopiedBuffer> buffers, std::span<std::byte> piece,
                  Direction direction) {
  Streams streams;
  Status enqueued;
  for (const CopiedBuffer& buffer : buffers) {
    if (enqueued) enqueued = enqueue(buffer, piece, direction, streams);
  }
  const Status copied = streams.synchronize();
  return enqueued ? copied : enqueued;
}

}  // namespace gcr::agent
