// Copies and fills, synchronous and in streams.
#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "tests/softgpu/process.h"
#include "tests/softgpu/stream_api.h"

namespace gcr::softgpu {
namespace {

constexpr std::size_t kStagedBytes = 64 * 1024;

/// `height` rows of `width` bytes.
struct Block {
  std::uintptr_t to = 0;
  std::uintptr_t from = 0;
  std::size_t width = 0;
  std::size_t height = 1;
  std::size_t to_pitch = 0;
  std::size_t from_pitch = 0;

  std::size_t extent(std::size_t pitch) const {
    return width == 0 || height == 0 ? 0 : pitch * (height - 1) + width;
  }
};

enum class Side { kHost, kDevice, kEither };

void run(const Block& block) {
  for (std::size_t row = 0; row < block.height; ++row) {
    std::memmove(reinterpret_cast<void*>(block.to + row * block.to_pitch),
                 reinterpret_cast<const void*>(block.from + row * block.from_pitch), block.width);
  }
}

/// Whether the driver may touch this end of a copy. Host memory that it does not know is believed.
bool usable(const Memory& memory, std::uintptr_t address, std::size_t bytes, Side side,
            int protection) {
  if (bytes == 0) return true;
  if (side == Side::kHost) return address != 0;
  const bool known = memory.find(address).bytes != 0;
  if (!known) return side == Side::kEither && address != 0;
  return memory.accessible(address, bytes, protection);
}

bool is_pageable(const Memory& memory, std::uintptr_t address) {
  return memory.find(address).bytes == 0;
}

/// Runs a block in a stream: at once on this thread if it must be complete on return.
CUresult submit(Process& process, Stream& stream, const Block& block, bool synchronous) {
  Context& context = *stream.context;
  const bool captured = [&] {
    std::lock_guard lock(context.mutex);
    return stream.capture != nullptr;
  }();
  if (synchronous && stream.kind == StreamKind::kLegacy && context.capturing()) {
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  const Memory& memory = process.memory;
  if (!captured && !synchronous && is_pageable(memory, block.from) && block.height == 1 &&
      block.width <= kStagedBytes && !is_pageable(memory, block.to)) {
    const auto* bytes = reinterpret_cast<const std::byte*>(block.from);
    return context.submit(stream,
                          {CU_GRAPH_NODE_TYPE_MEMCPY,
                           [to = block.to, staged = std::vector(bytes, bytes + block.width)] {
                             std::memcpy(reinterpret_cast<void*>(to), staged.data(), staged.size());
                             return CUDA_SUCCESS;
                           }});
  }
  if (!captured &&
      (synchronous || is_pageable(memory, block.from) || is_pageable(memory, block.to))) {
    if (const CUresult fault = context.synchronize(stream)) return fault;
    run(block);
    return CUDA_SUCCESS;
  }
  return context.submit(stream, {CU_GRAPH_NODE_TYPE_MEMCPY, [block] {
                                   run(block);
                                   return CUDA_SUCCESS;
                                 }});
}

CUresult copy_block(DefaultStream flavour, const Block& block, Side to, Side from, CUstream handle,
                    bool synchronous) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    const auto stream = resolve_stream(process, context, handle, flavour);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!usable(process.memory, block.to, block.extent(block.to_pitch), to, PROT_WRITE) ||
        !usable(process.memory, block.from, block.extent(block.from_pitch), from, PROT_READ)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (block.width == 0 || block.height == 0) return CUDA_SUCCESS;
    return submit(process, *stream, block, synchronous);
  });
}

template <class To, class From>
Block line(To to, From from, std::size_t bytes) {
  return {(std::uintptr_t)to, (std::uintptr_t)from, bytes, 1, bytes, bytes};  // NOLINT
}

CUresult copy(DefaultStream f, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return copy_block(f, line(to, from, bytes), Side::kEither, Side::kEither, nullptr, true);
}
CUresult copy_htod(DefaultStream f, CUdeviceptr to, const void* from, std::size_t bytes) {
  return copy_block(f, line(to, from, bytes), Side::kDevice, Side::kHost, nullptr, true);
}
CUresult copy_dtoh(DefaultStream f, void* to, CUdeviceptr from, std::size_t bytes) {
  return copy_block(f, line(to, from, bytes), Side::kHost, Side::kDevice, nullptr, true);
}
CUresult copy_dtod(DefaultStream f, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return copy_block(f, line(to, from, bytes), Side::kDevice, Side::kDevice, nullptr, true);
}
CUresult copy_async(DefaultStream f, CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                    CUstream stream) {
  return copy_block(f, line(to, from, bytes), Side::kEither, Side::kEither, stream, false);
}
CUresult copy_htod_async(DefaultStream f, CUdeviceptr to, const void* from, std::size_t bytes,
                         CUstream stream) {
  return copy_block(f, line(to, from, bytes), Side::kDevice, Side::kHost, stream, false);
}
CUresult copy_dtoh_async(DefaultStream f, void* to, CUdeviceptr from, std::size_t bytes,
                         CUstream stream) {
  return copy_block(f, line(to, from, bytes), Side::kHost, Side::kDevice, stream, false);
}
CUresult copy_dtod_async(DefaultStream f, CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                         CUstream stream) {
  return copy_block(f, line(to, from, bytes), Side::kDevice, Side::kDevice, stream, false);
}
/// Copies between contexts need no peer access: without it the driver goes through the host.
CUresult copy_peer_in(DefaultStream f, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                      CUcontext from_context, std::size_t bytes, CUstream stream,
                      bool synchronous) {
  const CUresult known = call([&](Process& process) {
    return process.contexts.get(to_context) && process.contexts.get(from_context)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_CONTEXT;
  });
  if (known != CUDA_SUCCESS) return known;
  return copy_block(f, line(to, from, bytes), Side::kDevice, Side::kDevice, stream, synchronous);
}
CUresult copy_peer(DefaultStream f, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                   CUcontext from_context, std::size_t bytes) {
  return copy_peer_in(f, to, to_context, from, from_context, bytes, nullptr, true);
}
CUresult copy_peer_async(DefaultStream f, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                         CUcontext from_context, std::size_t bytes, CUstream stream) {
  return copy_peer_in(f, to, to_context, from, from_context, bytes, stream, false);
}

Side side_of(CUmemorytype type) {
  return type == CU_MEMORYTYPE_HOST     ? Side::kHost
         : type == CU_MEMORYTYPE_DEVICE ? Side::kDevice
                                        : Side::kEither;
}

CUresult copy_2d_in(DefaultStream flavour, const CUDA_MEMCPY2D* what, CUstream stream,
                    bool synchronous) {
  if (what == nullptr || what->srcMemoryType == CU_MEMORYTYPE_ARRAY ||
      what->dstMemoryType == CU_MEMORYTYPE_ARRAY) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Block block;
  block.width = what->WidthInBytes;
  block.height = what->Height;
  block.to_pitch = what->dstPitch != 0 ? what->dstPitch : what->WidthInBytes;
  block.from_pitch = what->srcPitch != 0 ? what->srcPitch : what->WidthInBytes;
  if (block.to_pitch < what->dstXInBytes + block.width ||
      block.from_pitch < what->srcXInBytes + block.width) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  block.to = what->dstMemoryType == CU_MEMORYTYPE_HOST
                 ? reinterpret_cast<std::uintptr_t>(what->dstHost)
                 : what->dstDevice;
  block.from = what->srcMemoryType == CU_MEMORYTYPE_HOST
                   ? reinterpret_cast<std::uintptr_t>(what->srcHost)
                   : what->srcDevice;
  block.to += what->dstY * block.to_pitch + what->dstXInBytes;
  block.from += what->srcY * block.from_pitch + what->srcXInBytes;
  return copy_block(flavour, block, side_of(what->dstMemoryType), side_of(what->srcMemoryType),
                    stream, synchronous);
}

CUresult copy_2d(DefaultStream flavour, const CUDA_MEMCPY2D* what) {
  return copy_2d_in(flavour, what, nullptr, true);
}
CUresult copy_2d_async(DefaultStream flavour, const CUDA_MEMCPY2D* what, CUstream stream) {
  return copy_2d_in(flavour, what, stream, false);
}

template <class T>
void fill_rows(std::uintptr_t to, std::size_t pitch, T value, std::size_t width,
               std::size_t height) {
  for (std::size_t row = 0; row < height; ++row) {
    std::fill_n(reinterpret_cast<T*>(to + row * pitch), width, value);
  }
}

template <class T>
CUresult fill_2d_async(DefaultStream flavour, CUdeviceptr to, std::size_t pitch, T value,
                       std::size_t width, std::size_t height, CUstream handle,
                       bool synchronous = false) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    const auto stream = resolve_stream(process, context, handle, flavour);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    const std::size_t extent = height == 0 ? 0 : pitch * (height - 1) + width * sizeof(T);
    if (to % sizeof(T) != 0 || pitch % sizeof(T) != 0 ||
        !usable(process.memory, to, extent, Side::kDevice, PROT_WRITE)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (synchronous) {
      if (const CUresult fault = context.synchronize(*stream)) return fault;
      fill_rows(to, pitch, value, width, height);
      return CUDA_SUCCESS;
    }
    return stream->context->submit(*stream, {CU_GRAPH_NODE_TYPE_MEMSET, [=] {
                                               fill_rows(to, pitch, value, width, height);
                                               return CUDA_SUCCESS;
                                             }});
  });
}

template <class T>
CUresult fill_async(DefaultStream flavour, CUdeviceptr to, T value, std::size_t count,
                    CUstream stream) {
  return fill_2d_async<T>(flavour, to, count * sizeof(T), value, count, 1, stream);
}

template <class T>
CUresult fill(DefaultStream flavour, CUdeviceptr to, T value, std::size_t count) {
  return fill_2d_async<T>(flavour, to, count * sizeof(T), value, count, 1, nullptr, true);
}

template <class T>
CUresult fill_2d(DefaultStream flavour, CUdeviceptr to, std::size_t pitch, T value,
                 std::size_t width, std::size_t height) {
  return fill_2d_async<T>(flavour, to, pitch, value, width, height, nullptr, true);
}

template <class T>
CUresult fill_2d_in(DefaultStream flavour, CUdeviceptr to, std::size_t pitch, T value,
                    std::size_t width, std::size_t height, CUstream stream) {
  return fill_2d_async<T>(flavour, to, pitch, value, width, height, stream);
}

}  // namespace

SOFTGPU_BOTH(cuMemcpy, cuMemcpy_ptds, copy, (CUdeviceptr to, CUdeviceptr from, std::size_t bytes),
             to, from, bytes)
SOFTGPU_BOTH(cuMemcpyAsync, cuMemcpyAsync_ptsz, copy_async,
             (CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream), to, from,
             bytes, stream)
SOFTGPU_BOTH(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, copy_htod,
             (CUdeviceptr to, const void* from, std::size_t bytes), to, from, bytes)
SOFTGPU_BOTH(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, copy_dtoh,
             (void* to, CUdeviceptr from, std::size_t bytes), to, from, bytes)
SOFTGPU_BOTH(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, copy_dtod,
             (CUdeviceptr to, CUdeviceptr from, std::size_t bytes), to, from, bytes)
SOFTGPU_BOTH(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz, copy_htod_async,
             (CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream), to, from,
             bytes, stream)
SOFTGPU_BOTH(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz, copy_dtoh_async,
             (void* to, CUdeviceptr from, std::size_t bytes, CUstream stream), to, from, bytes,
             stream)
SOFTGPU_BOTH(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz, copy_dtod_async,
             (CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream), to, from,
             bytes, stream)
SOFTGPU_BOTH(cuMemcpyPeer, cuMemcpyPeer_ptds, copy_peer,
             (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
              std::size_t bytes),
             to, to_context, from, from_context, bytes)
SOFTGPU_BOTH(cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz, copy_peer_async,
             (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
              std::size_t bytes, CUstream stream),
             to, to_context, from, from_context, bytes, stream)
SOFTGPU_BOTH(cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, copy_2d, (const CUDA_MEMCPY2D* what), what)
SOFTGPU_BOTH(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, copy_2d,
             (const CUDA_MEMCPY2D* what), what)
SOFTGPU_BOTH(cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz, copy_2d_async,
             (const CUDA_MEMCPY2D* what, CUstream stream), what, stream)

#define SOFTGPU_FILL(size, type)                                                                   \
  SOFTGPU_BOTH(cuMemsetD##size##_v2, cuMemsetD##size##_v2_ptds, fill<type>,                        \
               (CUdeviceptr to, type value, std::size_t count), to, value, count)                  \
  SOFTGPU_BOTH(cuMemsetD##size##Async, cuMemsetD##size##Async_ptsz, fill_async<type>,              \
               (CUdeviceptr to, type value, std::size_t count, CUstream stream), to, value, count, \
               stream)                                                                             \
  SOFTGPU_BOTH(                                                                                    \
      cuMemsetD2D##size##_v2, cuMemsetD2D##size##_v2_ptds, fill_2d<type>,                          \
      (CUdeviceptr to, std::size_t pitch, type value, std::size_t width, std::size_t height), to,  \
      pitch, value, width, height)                                                                 \
  SOFTGPU_BOTH(cuMemsetD2D##size##Async, cuMemsetD2D##size##Async_ptsz, fill_2d_in<type>,          \
               (CUdeviceptr to, std::size_t pitch, type value, std::size_t width,                  \
                std::size_t height, CUstream stream),                                              \
               to, pitch, value, width, height, stream)

SOFTGPU_FILL(8, unsigned char)
SOFTGPU_FILL(16, unsigned short)
SOFTGPU_FILL(32, unsigned int)

}  // namespace gcr::softgpu
