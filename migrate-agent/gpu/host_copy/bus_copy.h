// Copies between VRAM and host memory at the rate of the bus. Out of VRAM: into memory that is
// page-locked, in large pieces. Into VRAM: page-locking would take as long as the copy, so threads
// copy through small page-locked stages instead.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "migrate-agent/gpu/device/device.h"
#include "src/base/result.h"

namespace gcr::gpu {

/// All of an allocation, and its place in host memory.
struct CopiedBuffer {
  const device::Allocation* vram = nullptr;
  std::span<std::byte> host;
};

/// `memory` in pieces of a size that is page-locked and copied at once.
std::vector<std::span<std::byte>> pieces_of(std::span<std::byte> memory);

/// Copies those parts of `buffers` that lie in `piece`, which is page-locked, into it, and waits
/// for them. Several threads at once, each with a piece of its own, keep the bus busy.
Status copy_out(std::span<const CopiedBuffer> buffers, std::span<std::byte> piece);

/// Copies all of `buffers` into VRAM, out of memory that is not page-locked, and waits for it.
Status copy_in(std::span<const CopiedBuffer> buffers);

}  // namespace gcr::gpu
