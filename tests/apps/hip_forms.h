// HIP functions whose signatures differ from CUDA's, behind CUDA's signatures. All others can be
// called through CUDA's types, because sizes and numbers agree.
#pragma once

#include "preload/cuda/abi/driver_abi.h"

namespace gcr::apps {

/// For one HIP library per process; any thread.
struct HipForms {
  int version;  ///< 10000000 * major + 100000 * minor + patch
  CUresult (*error_name)(CUresult, const char**);
  /// HIP does not report CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, which is 0 here; no other is known.
  CUresult (*attribute)(int*, CUdevice_attribute, CUdevice);
  CUresult (*load_module)(CUmodule*, const void*);
  CUresult (*import_memory)(CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType);
  /// For kKernelsPtx the result of compiling kernels.cu with hipRTC for the current device; any
  /// other image unchanged.
  const void* (*code_of)(const void* image);
};

/// `library` is a handle of dlopen that stays open.
const HipForms& hip_forms(void* library);

}  // namespace gcr::apps
