// The HIP face of preload/memory: its state, and conversions between HIP's types and the library's.
// A context is a device.
#pragma once

#include "preload/hip/abi/hip_abi.h"
#include "preload/memory/runtime.h"

namespace gcr::preload {

/// The HIP runtime of this process. Created at the first call, never destroyed.
Runtime& hip();

static_assert(static_cast<unsigned>(Rights::kRead) == hipMemAccessFlagsProtRead);
static_assert(static_cast<unsigned>(Rights::kReadWrite) == hipMemAccessFlagsProtReadWrite);
static_assert(Access::kDevice == hipMemLocationTypeDevice);
static_assert(kFileDescriptor == hipMemHandleTypePosixFileDescriptor);

inline hipError_t to_hip(Result result) { return static_cast<hipError_t>(result); }
inline Result from_hip(hipError_t result) { return static_cast<Result>(result); }

inline Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }
inline void* pointer_to(Address address) { return reinterpret_cast<void*>(address); }

inline Handle from_hip(hipMemGenericAllocationHandle_t handle) {
  return reinterpret_cast<Handle>(handle);
}
inline hipMemGenericAllocationHandle_t to_hip(Handle handle) {
  return reinterpret_cast<hipMemGenericAllocationHandle_t>(handle);
}
inline Stream* from_hip(hipStream_t stream) { return reinterpret_cast<Stream*>(stream); }
inline hipStream_t to_hip(Stream* stream) { return reinterpret_cast<hipStream_t>(stream); }
inline hipEvent_t to_hip(Event* event) { return reinterpret_cast<hipEvent_t>(event); }
inline PoolHandle* from_hip(hipMemPool_t pool) { return reinterpret_cast<PoolHandle*>(pool); }
inline hipMemPool_t to_hip(PoolHandle* pool) { return reinterpret_cast<hipMemPool_t>(pool); }

inline Context* context_of(int device) {
  return reinterpret_cast<Context*>(static_cast<std::uintptr_t>(device) + 1);
}
inline int device_of(Context* context) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1;
}

/// The stream of a per-thread function, for which null means the calling thread's own stream.
inline hipStream_t of_thread(hipStream_t stream) {
  return stream == nullptr ? hipStreamPerThread : stream;
}

inline Access from_hip(const hipMemAccessDesc& access) {
  return {static_cast<int>(access.location.type), access.location.id,
          static_cast<Rights>(access.flags)};
}

/// The release of the loaded library in HIP's format, 10,000,000 * major + 100,000 * minor + patch;
/// 0 if it is unknown.
int hip_release();
inline constexpr int kRelease5_3 = 50'300'000;  ///< hipMemAllocationPropR0503
inline constexpr int kRelease6_0 = 60'000'000;  ///< hipMemoryTypeR0600
inline constexpr int kRelease6_2 = 60'200'000;  ///< pools have a maximum size
inline constexpr int kRelease7_0 = 70'000'000;  ///< hipGetLastError returns errors only
inline constexpr int kRelease7_1 = 70'100'000;  ///< descriptors are imported by value

/// Converts the properties of memory that the application requests. Before 5.3, the library backs
/// and tracks no memory.
Asked from_hip(const hipMemAllocationProp& properties);

/// Drops the number of a stream that is destroyed, because HIP may reuse its handle for a new
/// stream.
void forget_stream_number(hipStream_t stream);

}  // namespace gcr::preload
