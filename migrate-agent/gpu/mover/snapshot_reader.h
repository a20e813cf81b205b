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

/// A few slots alternate: while all threads hand on the chunks of one, the next ones are being
/// copied from the GPU. All chunks of a slot are copied aside and digested together: on a GPU that
/// the application uses too, each launch costs a change of contexts, so launches are few. Memory is
/// allocated when it is first needed, and kept: 96 MiB page-locked, and as much VRAM on each GPU.
/// If a GPU has no VRAM left for the copies, chunks go directly to page-locked memory, where the
/// GPU digests them over the bus.
class SnapshotReader {
 public:
  explicit SnapshotReader(const VramDigester& digester);
  ~SnapshotReader();
  SnapshotReader(const SnapshotReader&) = delete;
  SnapshotReader& operator=(const SnapshotReader&) = delete;

  /// Allocates the memory for chunks of that GPU now, so that read() need not.
  Status prepare(const std::shared_ptr<device::Gpu>& gpu);

  /// Blocks until every chunk has gone through `sink`, on `threads` threads, or returns the first
  /// error, after all threads have ended. One call at a time; the chunks' GPUs are prepared in the
  /// digester.
  Status read(std::span<const VramChunk> chunks, unsigned threads, const ChunkSink& sink);

  /// The memory that chunks are handed on from, as far as it is allocated; it is never moved.
  std::vector<std::span<const std::byte>> memory() const;

 private:
  class Slot;
  class Run;
  const VramDigester& digester_;
  std::vector<std::unique_ptr<Slot>> slots_;
};

}  // namespace gcr::mover
