// The CUDA face of preload/memory: its state, and conversions between CUDA's types and the
// library's.
#pragma once

#include "preload/cuda/abi/driver_abi.h"
#include "preload/memory/runtime.h"

namespace gcr::preload {

/// The CUDA runtime of this process. Created at the first call and never destroyed, because threads
/// may use it while the process exits.
Runtime& cuda();

static_assert(std::is_same_v<Address, CUdeviceptr>);
static_assert(std::is_same_v<Handle, CUmemGenericAllocationHandle>);
static_assert(static_cast<unsigned>(Rights::kRead) == CU_MEM_ACCESS_FLAGS_PROT_READ);
static_assert(static_cast<unsigned>(Rights::kReadWrite) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(Access::kDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(kFileDescriptor == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

inline CUresult to_cuda(Result result) { return static_cast<CUresult>(result); }
inline Result from_cuda(CUresult result) { return static_cast<Result>(result); }

inline Context* from_cuda(CUcontext context) { return reinterpret_cast<Context*>(context); }
inline Stream* from_cuda(CUstream stream) { return reinterpret_cast<Stream*>(stream); }
inline PoolHandle* from_cuda(CUmemoryPool pool) { return reinterpret_cast<PoolHandle*>(pool); }
inline CUcontext to_cuda(Context* context) { return reinterpret_cast<CUcontext>(context); }
inline CUstream to_cuda(Stream* stream) { return reinterpret_cast<CUstream>(stream); }
inline CUevent to_cuda(Event* event) { return reinterpret_cast<CUevent>(event); }
inline CUmemoryPool to_cuda(PoolHandle* pool) { return reinterpret_cast<CUmemoryPool>(pool); }

/// The stream of a per-thread function, for which null means the calling thread's own stream.
inline CUstream of_thread(CUstream stream) {
  return stream == nullptr ? CU_STREAM_PER_THREAD : stream;
}

inline Access from_cuda(const CUmemAccessDesc& access) {
  return {static_cast<int>(access.location.type), access.location.id,
          static_cast<Rights>(access.flags)};
}

Asked from_cuda(const CUmemAllocationProp& properties);

}  // namespace gcr::preload
