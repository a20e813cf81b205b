// Where HIP's functions have another form than CUDA's: the same by CUDA's. All others can be called
// through CUDA's types, because sizes and numbers agree.
#pragma once

#include "preload/cuda/abi/driver_abi.h"

namespace gcr::apps {

/// For one library of HIP in a process; any thread.
struct HipForms {
  int version;  ///< 10000000 * major + 100000 * minor + patch
  CUresult (*error_name)(CUresult, const char**);
  /// HIP does not tell CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, and that is 0 here; no other is known.
  CUresult (*attribute)(int*, CUdevice_attribute, CUdevice);
  CUresult (*load_module)(CUmodule*, const void*);
  CUresult (*import_memory)(CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType);
  /// For kKernelsPtx what hipRTC makes of kernels.cu for the current device; any other image as it
  /// is.
  const void* (*code_of)(const void* image);
};

/// `library` is a handle of dlopen, for good.
const HipForms& hip_forms(void* library);

}  // namespace gcr::apps
