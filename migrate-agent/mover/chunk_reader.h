// Reads VRAM chunk by chunk into page-locked memory, with several threads, each one chunk ahead of
// what it is handing on, so that the bus and the consumer work at the same time.
#pragma once

#include <functional>
#include <span>

#include "migrate-agent/mover/vram.h"

namespace gcr::mover {

/// Gets one chunk: which of the buffers, where in it, and its bytes (at most kChunkBytes, valid
/// during the call). Called from several threads at once, once per chunk.
using ChunkSink = std::function<Status(std::size_t buffer_index, std::uint64_t offset,
                                       std::span<const std::byte> bytes)>;

/// Blocks until every chunk of every buffer went through `sink`, or returns the first error, after
/// all threads have ended. Page-locked memory: 4 MiB per thread.
Status read_chunks(std::span<const Vram* const> buffers, unsigned threads, const ChunkSink& sink);

}  // namespace gcr::mover
