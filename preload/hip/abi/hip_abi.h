// The part of the HIP binary interface that this project uses, declared here so that ROCm is not
// needed to build. Names, values and layouts equal those of HIP 5.2; a type that a later release
// changed is declared a second time with that release in its name, as in HIP (hipDeviceProp_tR0600:
// ROCm 6.0 and later). Never include this and HIP's headers in one file. If HIP 5.2 is installed
// (libamdhip64-dev of Debian 12), preload_hip_abi_test (tests/preload/hip) compares every size,
// offset and value with it. Later declarations follow the headers of ROCm 5.3 to 6.2 in ROCm/HIP
// and ROCm/clr, and of 7 in ROCm/rocm-systems.
//
// The functions themselves are not declared: preload/hip/hip_api.def names those that the preload
// library interposes, and other programs look up the functions that they call.
#pragma once

#include <cstddef>
#include <cstdint>

typedef void* hipDeviceptr_t;
typedef int hipDevice_t;
typedef void* hipExternalMemory_t;
typedef void* hipExternalSemaphore_t;

// Handles: opaque pointers of HIP.
typedef struct ihipCtx_t* hipCtx_t;
typedef struct ihipStream_t* hipStream_t;
typedef struct ihipEvent_t* hipEvent_t;
typedef struct ihipModule_t* hipModule_t;
typedef struct ihipModuleSymbol_t* hipFunction_t;
typedef struct ihipMemPoolHandle_t* hipMemPool_t;
typedef struct ihipMemGenericAllocationHandle* hipMemGenericAllocationHandle_t;
typedef struct ihipGraph* hipGraph_t;
typedef struct hipGraphNode* hipGraphNode_t;
typedef struct hipGraphExec* hipGraphExec_t;
typedef struct ihipLibrary_t* hipLibrary_t;                  ///< since 7.2
typedef struct ihipKernel_t* hipKernel_t;                    ///< since 7.2
typedef struct ihipExecutionCtx_t* hipExecutionCtx_t;        ///< since 7.14
typedef struct ihipDevResourceDesc_t* hipDevResourceDesc_t;  ///< since 7.14
typedef struct hipArray* hipArray_t;
typedef const struct hipArray* hipArray_const_t;
typedef struct hipMipmappedArray* hipMipmappedArray_t;
typedef const struct hipMipmappedArray* hipMipmappedArray_const_t;
typedef struct hipTextureObject_st* hipTextureObject_t;
typedef struct hipSurfaceObject_st* hipSurfaceObject_t;
typedef struct hipGraphicsResource_st* hipGraphicsResource_t;
typedef struct hiprtcProgram_st* hiprtcProgram;

typedef void (*hipHostFn_t)(void* userData);

#include "preload/hip/abi/hip_enums.h"    // IWYU pragma: export
#include "preload/hip/abi/hip_structs.h"  // IWYU pragma: export

typedef void (*hipStreamCallback_t)(hipStream_t stream, hipError_t status, void* userData);

#define hipStreamPerThread (reinterpret_cast<hipStream_t>(0x2))
#define hipCpuDeviceId (-1)
#define HIP_LAUNCH_PARAM_BUFFER_POINTER (reinterpret_cast<void*>(0x01))
#define HIP_LAUNCH_PARAM_BUFFER_SIZE (reinterpret_cast<void*>(0x02))
#define HIP_LAUNCH_PARAM_END (reinterpret_cast<void*>(0x03))

// Flags.
#define hipStreamDefault 0x00
#define hipStreamNonBlocking 0x01
#define hipEventDisableTiming 0x2
#define hipHostMallocDefault 0x0
#define hipHostMallocPortable 0x1
#define hipMemAttachGlobal 0x01
#define hipMemAttachHost 0x02
#define hipDeviceMallocDefault 0x0
#define hipDeviceMallocFinegrained 0x1
#define hipMallocSignalMemory 0x2
#define hipHostRegisterPortable 0x1
#define hipStreamWaitValueGte 0x0
#define hipStreamWaitValueEq 0x1
#define hipStreamWaitValueAnd 0x2
#define hipStreamWaitValueNor 0x3
#define hipDeviceMallocUncached 0x3    ///< since 5.5
#define hipDeviceMallocContiguous 0x4  ///< since 6.2

// Flags of hipGetProcAddress, which it evaluates since 7.2.
#define HIP_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM 0x2
