// Copies and fills, synchronous and in streams.
#include "tests/softgpu/cuda/stream_api.h"
#include "tests/softgpu/engine/copies.h"

namespace gcr::softgpu {
namespace {

CUresult copy_in(DefaultStream flavour, const Block& block, Side to, Side from, CUstream handle,
                 bool synchronous) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    const auto stream = resolve_stream(process, context, handle, flavour);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    return copy_block(process, *stream, block, to, from, synchronous);
  });
}

CUresult copy(DefaultStream f, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return copy_in(f, line(to, from, bytes), Side::kEither, Side::kEither, nullptr, true);
}
CUresult copy_htod(DefaultStream f, CUdeviceptr to, const void* from, std::size_t bytes) {
  return copy_in(f, line(to, from, bytes), Side::kDevice, Side::kHost, nullptr, true);
}
CUresult copy_dtoh(DefaultStream f, void* to, CUdeviceptr from, std::size_t bytes) {
  return copy_in(f, line(to, from, bytes), Side::kHost, Side::kDevice, nullptr, true);
}
CUresult copy_dtod(DefaultStream f, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return copy_in(f, line(to, from, bytes), Side::kDevice, Side::kDevice, nullptr, true);
}
CUresult copy_async(DefaultStream f, CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                    CUstream stream) {
  return copy_in(f, line(to, from, bytes), Side::kEither, Side::kEither, stream, false);
}
CUresult copy_htod_async(DefaultStream f, CUdeviceptr to, const void* from, std::size_t bytes,
                         CUstream stream) {
  return copy_in(f, line(to, from, bytes), Side::kDevice, Side::kHost, stream, false);
}
CUresult copy_dtoh_async(DefaultStream f, void* to, CUdeviceptr from, std::size_t bytes,
                         CUstream stream) {
  return copy_in(f, line(to, from, bytes), Side::kHost, Side::kDevice, stream, false);
}
CUresult copy_dtod_async(DefaultStream f, CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                         CUstream stream) {
  return copy_in(f, line(to, from, bytes), Side::kDevice, Side::kDevice, stream, false);
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
  return copy_in(f, line(to, from, bytes), Side::kDevice, Side::kDevice, stream, synchronous);
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
  return copy_in(flavour, block, side_of(what->dstMemoryType), side_of(what->srcMemoryType), stream,
                 synchronous);
}

CUresult copy_2d(DefaultStream flavour, const CUDA_MEMCPY2D* what) {
  return copy_2d_in(flavour, what, nullptr, true);
}
CUresult copy_2d_async(DefaultStream flavour, const CUDA_MEMCPY2D* what, CUstream stream) {
  return copy_2d_in(flavour, what, stream, false);
}

template <class T>
CUresult fill_2d_async(DefaultStream flavour, CUdeviceptr to, std::size_t pitch, T value,
                       std::size_t width, std::size_t height, CUstream handle,
                       bool synchronous = false) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    const auto stream = resolve_stream(process, context, handle, flavour);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    return fill_rows(process, *stream, to, pitch, value, width, height, synchronous);
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
