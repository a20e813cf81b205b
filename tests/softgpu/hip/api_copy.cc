// Copies and fills. Addresses determine the locations: the direction is checked but not needed.
#include "tests/softgpu/engine/copies.h"
#include "tests/softgpu/hip/face.h"

namespace gcr::softgpu::hip {
namespace {

bool valid(hipMemcpyKind kind) {
  return (kind >= hipMemcpyHostToHost && kind <= hipMemcpyDefault) ||
         kind == hipMemcpyDeviceToDeviceNoCU;
}

hipError_t copy_in(DefaultStream flavour, const Block& block, hipStream_t handle,
                   bool synchronous) {
  return call_in_stream(
      flavour, handle, [&](Process& process, const std::shared_ptr<Stream>& stream) {
        return copy_block(process, *stream, block, Side::kEither, Side::kEither, synchronous);
      });
}

hipError_t copy_kind(DefaultStream flavour, const Block& block, hipMemcpyKind kind,
                     hipStream_t stream, bool synchronous) {
  if (!valid(kind)) return remember(hipErrorInvalidMemcpyDirection);
  if (block.to_pitch < block.width || block.from_pitch < block.width) {
    return remember(hipErrorInvalidPitchValue);
  }
  return copy_in(flavour, block, stream, synchronous);
}

hipError_t copy(DefaultStream f, void* to, const void* from, std::size_t bytes,
                hipMemcpyKind kind) {
  return copy_kind(f, line(to, from, bytes), kind, nullptr, true);
}

hipError_t copy_async(DefaultStream f, void* to, const void* from, std::size_t bytes,
                      hipMemcpyKind kind, hipStream_t stream) {
  return copy_kind(f, line(to, from, bytes), kind, stream, false);
}

Block rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
           std::size_t width, std::size_t height) {
  return {address_of(to), address_of(from), width, height, to_pitch, from_pitch};
}

hipError_t copy_2d(DefaultStream f, void* to, std::size_t to_pitch, const void* from,
                   std::size_t from_pitch, std::size_t width, std::size_t height,
                   hipMemcpyKind kind) {
  return copy_kind(f, rows(to, to_pitch, from, from_pitch, width, height), kind, nullptr, true);
}

hipError_t copy_2d_async(DefaultStream f, void* to, std::size_t to_pitch, const void* from,
                         std::size_t from_pitch, std::size_t width, std::size_t height,
                         hipMemcpyKind kind, hipStream_t stream) {
  return copy_kind(f, rows(to, to_pitch, from, from_pitch, width, height), kind, stream, false);
}

/// hipMemoryTypeHost of the simulated release.
bool is_host(hipMemoryType type) {
  return unsigned{type} ==
         (release() < 600 ? unsigned{hipMemoryTypeHost} : unsigned{hipMemoryTypeHostR0600});
}

hipError_t copy_described(const hip_Memcpy2D* what, hipStream_t stream, bool synchronous) {
  if (what == nullptr || what->srcArray != nullptr || what->dstArray != nullptr) {
    return remember(hipErrorInvalidValue);
  }
  const void* from = is_host(what->srcMemoryType) ? what->srcHost : what->srcDevice;
  void* to = is_host(what->dstMemoryType) ? what->dstHost : what->dstDevice;
  Block block;
  block.width = what->WidthInBytes;
  block.height = what->Height;
  block.to_pitch = what->dstPitch != 0 ? what->dstPitch : what->WidthInBytes;
  block.from_pitch = what->srcPitch != 0 ? what->srcPitch : what->WidthInBytes;
  if (block.to_pitch < what->dstXInBytes + block.width ||
      block.from_pitch < what->srcXInBytes + block.width) {
    return remember(hipErrorInvalidValue);
  }
  block.to = address_of(to) + what->dstY * block.to_pitch + what->dstXInBytes;
  block.from = address_of(from) + what->srcY * block.from_pitch + what->srcXInBytes;
  return copy_in(DefaultStream::kLegacy, block, stream, synchronous);
}

/// Copies between devices need no peer access: without it the runtime goes through the host.
hipError_t check_devices(int to, int from) {
  return call([&](Process& process) {
    return process.devices.has(to) && process.devices.has(from) ? hipSuccess
                                                                : hipErrorInvalidDevice;
  });
}

/// Of pitched memory, slice by slice; arrays are not supported.
hipError_t copy_3d(DefaultStream flavour, const hipMemcpy3DParms* what, hipStream_t handle,
                   bool synchronous) {
  if (what == nullptr || what->srcArray != nullptr || what->dstArray != nullptr) {
    return remember(hipErrorInvalidValue);
  }
  const auto place = [](const hipPitchedPtr& block, const hipPos& at, std::size_t slice) {
    return address_of(block.ptr) + at.x + block.pitch * (at.y + (at.z + slice) * block.ysize);
  };
  for (std::size_t slice = 0; slice < what->extent.depth; ++slice) {
    const Block block{place(what->dstPtr, what->dstPos, slice),
                      place(what->srcPtr, what->srcPos, slice),
                      what->extent.width,
                      what->extent.height,
                      what->dstPtr.pitch,
                      what->srcPtr.pitch};
    const hipError_t copied = copy_kind(flavour, block, what->kind, handle, synchronous);
    if (copied != hipSuccess) return copied;
  }
  return remember(hipSuccess);
}

hipError_t copy_3d_now(DefaultStream flavour, const hipMemcpy3DParms* what) {
  return copy_3d(flavour, what, nullptr, true);
}
hipError_t copy_3d_async(DefaultStream flavour, const hipMemcpy3DParms* what, hipStream_t stream) {
  return copy_3d(flavour, what, stream, false);
}

template <class T>
hipError_t fill_in(DefaultStream flavour, void* to, std::size_t pitch, T value, std::size_t width,
                   std::size_t height, hipStream_t handle, bool synchronous) {
  return call_in_stream(flavour, handle,
                        [&](Process& process, const std::shared_ptr<Stream>& stream) {
                          return fill_rows(process, *stream, address_of(to), pitch, value, width,
                                           height, synchronous);
                        });
}

hipError_t fill_bytes(DefaultStream f, void* to, int value, std::size_t bytes) {
  return fill_in(f, to, bytes, static_cast<std::uint8_t>(value), bytes, 1, nullptr, true);
}

hipError_t fill_bytes_async(DefaultStream f, void* to, int value, std::size_t bytes,
                            hipStream_t stream) {
  return fill_in(f, to, bytes, static_cast<std::uint8_t>(value), bytes, 1, stream, false);
}

hipError_t fill_bytes_2d(DefaultStream f, void* to, std::size_t pitch, int value, std::size_t width,
                         std::size_t height) {
  return fill_in(f, to, pitch, static_cast<std::uint8_t>(value), width, height, nullptr, true);
}

hipError_t fill_bytes_2d_async(DefaultStream f, void* to, std::size_t pitch, int value,
                               std::size_t width, std::size_t height, hipStream_t stream) {
  return fill_in(f, to, pitch, static_cast<std::uint8_t>(value), width, height, stream, false);
}

hipError_t fill_3d(DefaultStream f, hipPitchedPtr block, int value, hipExtent extent,
                   hipStream_t stream, bool synchronous) {
  for (std::size_t slice = 0; slice < extent.depth; ++slice) {
    void* start = pointer_to(address_of(block.ptr) + slice * block.pitch * block.ysize);
    const hipError_t filled = fill_in(f, start, block.pitch, static_cast<std::uint8_t>(value),
                                      extent.width, extent.height, stream, synchronous);
    if (filled != hipSuccess) return filled;
  }
  return remember(hipSuccess);
}

hipError_t fill_3d_now(DefaultStream f, hipPitchedPtr block, int value, hipExtent extent) {
  return fill_3d(f, block, value, extent, nullptr, true);
}
hipError_t fill_3d_async(DefaultStream f, hipPitchedPtr block, int value, hipExtent extent,
                         hipStream_t stream) {
  return fill_3d(f, block, value, extent, stream, false);
}

}  // namespace

SOFTHIP_BOTH(hipMemcpy, copy, (void* to, const void* from, std::size_t bytes, hipMemcpyKind kind),
             to, from, bytes, kind)
SOFTHIP_BOTH(hipMemcpyAsync, copy_async,
             (void* to, const void* from, std::size_t bytes, hipMemcpyKind kind,
              hipStream_t stream),
             to, from, bytes, kind, stream)
SOFTHIP_BOTH(hipMemcpy2D, copy_2d,
             (void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
              std::size_t width, std::size_t height, hipMemcpyKind kind),
             to, to_pitch, from, from_pitch, width, height, kind)
SOFTHIP_BOTH(hipMemcpy2DAsync, copy_2d_async,
             (void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
              std::size_t width, std::size_t height, hipMemcpyKind kind, hipStream_t stream),
             to, to_pitch, from, from_pitch, width, height, kind, stream)
SOFTHIP_BOTH(hipMemcpy3D, copy_3d_now, (const hipMemcpy3DParms* what), what)
SOFTHIP_BOTH(hipMemcpy3DAsync, copy_3d_async, (const hipMemcpy3DParms* what, hipStream_t stream),
             what, stream)
SOFTHIP_BOTH(hipMemset3D, fill_3d_now, (hipPitchedPtr block, int value, hipExtent extent), block,
             value, extent)
SOFTHIP_BOTH(hipMemset3DAsync, fill_3d_async,
             (hipPitchedPtr block, int value, hipExtent extent, hipStream_t stream), block, value,
             extent, stream)
SOFTHIP_BOTH(hipMemset, fill_bytes, (void* to, int value, std::size_t bytes), to, value, bytes)
SOFTHIP_BOTH(hipMemsetAsync, fill_bytes_async,
             (void* to, int value, std::size_t bytes, hipStream_t stream), to, value, bytes, stream)
SOFTHIP_BOTH(hipMemset2D, fill_bytes_2d,
             (void* to, std::size_t pitch, int value, std::size_t width, std::size_t height), to,
             pitch, value, width, height)
SOFTHIP_BOTH(hipMemset2DAsync, fill_bytes_2d_async,
             (void* to, std::size_t pitch, int value, std::size_t width, std::size_t height,
              hipStream_t stream),
             to, pitch, value, width, height, stream)

SOFTHIP_API hipMemcpyWithStream(void* to, const void* from, std::size_t bytes, hipMemcpyKind kind,
                                hipStream_t stream) {
  return copy_kind(DefaultStream::kLegacy, line(to, from, bytes), kind, stream, true);
}

SOFTHIP_API hipMemcpyHtoD(hipDeviceptr_t to, void* from, std::size_t bytes) {
  return copy(DefaultStream::kLegacy, to, from, bytes, hipMemcpyHostToDevice);
}
SOFTHIP_API hipMemcpyDtoH(void* to, hipDeviceptr_t from, std::size_t bytes) {
  return copy(DefaultStream::kLegacy, to, from, bytes, hipMemcpyDeviceToHost);
}
SOFTHIP_API hipMemcpyDtoD(hipDeviceptr_t to, hipDeviceptr_t from, std::size_t bytes) {
  return copy(DefaultStream::kLegacy, to, from, bytes, hipMemcpyDeviceToDevice);
}
SOFTHIP_API hipMemcpyHtoDAsync(hipDeviceptr_t to, void* from, std::size_t bytes,
                               hipStream_t stream) {
  return copy_async(DefaultStream::kLegacy, to, from, bytes, hipMemcpyHostToDevice, stream);
}
SOFTHIP_API hipMemcpyDtoHAsync(void* to, hipDeviceptr_t from, std::size_t bytes,
                               hipStream_t stream) {
  return copy_async(DefaultStream::kLegacy, to, from, bytes, hipMemcpyDeviceToHost, stream);
}
SOFTHIP_API hipMemcpyDtoDAsync(hipDeviceptr_t to, hipDeviceptr_t from, std::size_t bytes,
                               hipStream_t stream) {
  return copy_async(DefaultStream::kLegacy, to, from, bytes, hipMemcpyDeviceToDevice, stream);
}

// By name, as HIP 5.2 does.
SOFTHIP_API hipMemcpyPeer(void* to, int to_device, const void* from, int from_device,
                          std::size_t bytes) {
  const hipError_t known = check_devices(to_device, from_device);
  return known != hipSuccess ? known : hipMemcpy(to, from, bytes, hipMemcpyDeviceToDevice);
}
SOFTHIP_API hipMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                               std::size_t bytes, hipStream_t stream) {
  const hipError_t known = check_devices(to_device, from_device);
  return known != hipSuccess ? known
                             : hipMemcpyAsync(to, from, bytes, hipMemcpyDeviceToDevice, stream);
}

SOFTHIP_API hipMemcpyParam2D(const hip_Memcpy2D* what) {
  return copy_described(what, nullptr, true);
}
SOFTHIP_API hipMemcpyParam2DAsync(const hip_Memcpy2D* what, hipStream_t stream) {
  return copy_described(what, stream, false);
}
SOFTHIP_API hipDrvMemcpy2DUnaligned(const hip_Memcpy2D* what) {
  return copy_described(what, nullptr, true);
}

#define SOFTHIP_FILL(size, type, element)                                                         \
  SOFTHIP_API hipMemsetD##size(hipDeviceptr_t to, type value, std::size_t count) {                \
    return fill_in(DefaultStream::kLegacy, to, count * sizeof(type), static_cast<element>(value), \
                   count, 1, nullptr, true);                                                      \
  }                                                                                               \
  SOFTHIP_API hipMemsetD##size##Async(hipDeviceptr_t to, type value, std::size_t count,           \
                                      hipStream_t stream) {                                       \
    return fill_in(DefaultStream::kLegacy, to, count * sizeof(type), static_cast<element>(value), \
                   count, 1, stream, false);                                                      \
  }                                                                                               \
  SOFTHIP_API hipMemsetD2D##size(hipDeviceptr_t to, std::size_t pitch, element value,             \
                                 std::size_t width, std::size_t height) {                         \
    return fill_in(DefaultStream::kLegacy, to, pitch, value, width, height, nullptr, true);       \
  }                                                                                               \
  SOFTHIP_API hipMemsetD2D##size##Async(hipDeviceptr_t to, std::size_t pitch, element value,      \
                                        std::size_t width, std::size_t height,                    \
                                        hipStream_t stream) {                                     \
    return fill_in(DefaultStream::kLegacy, to, pitch, value, width, height, stream, false);       \
  }

SOFTHIP_FILL(8, unsigned char, std::uint8_t)
SOFTHIP_FILL(16, unsigned short, std::uint16_t)
SOFTHIP_FILL(32, int, std::uint32_t)

}  // namespace gcr::softgpu::hip
