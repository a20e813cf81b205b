// VRAM, or memory of the host, that two ranks of the ring share: one creates it and offers it over
// a socket, the other accepts it and maps the same memory.
#pragma once

#include "tests/apps/driver.h"

namespace gcr::apps {

enum class RingMemory : std::uint64_t {
  kVram,      ///< cuMemCreate on the device, passed by descriptor
  kHost,      ///< cuMemCreate on the host, passed by descriptor; the CPU reads it
  kLegacyIpc  ///< cuMemAlloc, passed by cuIpcGetMemHandle
};

struct RingBox {
  RingMemory kind = RingMemory::kVram;
  std::uint64_t bytes = 0;  ///< at least 2 MiB, since smaller memory is left to the driver
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;  ///< of memory created here, unless kLegacyIpc
};

/// Memory of at least this size, full of zeros, with access for the GPU.
RingBox make_box(const Gpu& gpu, RingMemory kind, std::uint64_t bytes);

/// To the caller of take_box at the other end of the socket.
void offer_box(const Gpu& gpu, const RingBox& box, int socket);
RingBox take_box(const Gpu& gpu, int socket);

}  // namespace gcr::apps
