// Reads chunks of VRAM while the application goes on writing: each chunk is copied aside inside the
// GPU, the copy is digested, and the same copy goes to page-locked memory, so that the digest is
// that of the bytes handed on, whatever happens to the chunk meanwhile.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "migrate-agent/mover/vram_digester.h"

namespace gcr::mover {

/// Gets one chunk: its digest and its bytes (valid during the call). Called from several threads
/// at once, once per chunk.
using ChunkSink = std::function<Status(const ChunkRef& chunk, const digest::Digest& digest,
                                       std::span<const std::byte> bytes)>;

/// A few slots take turns: while the chunks in one are handed on by all threads together, the next
/// ones are on their way from the GPU. A slot is copied aside and digested in one go: a GPU that
/// the application uses too changes contexts for each launch, so launches are few. Memory is made
/// when it is first needed and kept: 96 MiB page-locked, and as much VRAM on each GPU. Where a GPU
/// has no VRAM left for the copies, chunks go to page-locked memory at once and are digested there,
/// by the GPU over the bus.
class SnapshotReader {
 public:
  explicit SnapshotReader(const VramDigester& digester);
  ~SnapshotReader();
  SnapshotReader(const SnapshotReader&) = delete;
  SnapshotReader& operator=(const SnapshotReader&) = delete;

  /// Makes the memory for chunks of that GPU now, so that read() takes no time for it.
  Status prepare(const std::shared_ptr<device::Gpu>& gpu);

  /// Blocks until every chunk went through `sink`, on `threads` threads, or returns the first
  /// error, after all of them have ended. One call at a time; the chunks' GPUs are prepared in the
  /// digester.
  Status read(std::span<const ChunkRef> chunks, unsigned threads, const ChunkSink& sink);

  /// The memory that chunks are handed on from, as far as it is made; it stays.
  std::vector<std::span<const std::byte>> memory() const;

 private:
  class Slot;
  class Run;
  const VramDigester& digester_;
  std::vector<std::unique_ptr<Slot>> slots_;
};

}  // namespace gcr::mover
