// Reads chunks of VRAM while the application keeps writing: each chunk is copied aside inside the
// GPU, the copy is digested, and the same copy goes to page-locked memory, so that the digest is
// that of the bytes handed on, even if the chunk changes meanwhile.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "migrate-agent/gpu/mover/chunk_sender.h"
#include "migrate-agent/gpu/mover/vram_digester.h"

namespace gcr::mover {

/// Memory is allocated when it is first needed, and kept: 96 MiB page-locked, and as much VRAM on
/// each GPU. If a GPU has no VRAM left for the copies, chunks are copied directly to page-locked
/// memory, where the GPU digests them over the bus.
class SnapshotReader {
 public:
  explicit SnapshotReader(const VramDigester& digester);
  ~SnapshotReader();
  SnapshotReader(const SnapshotReader&) = delete;
  SnapshotReader& operator=(const SnapshotReader&) = delete;

  /// Allocates the memory for chunks of that GPU now instead of in read().
  Status prepare(const std::shared_ptr<device::Gpu>& gpu);

  /// Hands every chunk to `sink`, on `threads` threads. Returns when all of them have ended, with
  /// the first error. One call at a time; the digester must have been prepared for the chunks'
  /// GPUs.
  Status read(std::span<const VramChunk> chunks, unsigned threads, const ChunkSink& sink);

  /// The memory that chunks are handed over from, as far as it is allocated. It never moves.
  std::vector<std::span<const std::byte>> memory() const;

 private:
  class Slot;
  class Run;
  const VramDigester& digester_;
  std::vector<std::unique_ptr<Slot>> slots_;
};

}  // namespace gcr::mover
