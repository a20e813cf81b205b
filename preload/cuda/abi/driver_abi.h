// The part of the CUDA driver's binary interface that this project uses, declared here so that no
// CUDA toolkit is needed to build. Names and values equal those in cuda.h (CUDA 13.0, and
// parameters of functions up to 13.3), so that code reads the same; never include both in one file.
// If a toolkit is present, preload_abi_test (tests/preload/table) compares every size, offset and
// value with its cuda.h.
//
// The functions themselves are not declared: preload/cuda/driver_api.def names those that the
// preload library interposes, and other programs look up the functions that they call.
#pragma once

#include <cstddef>
#include <cstdint>

typedef std::uint32_t cuuint32_t;
typedef std::uint64_t cuuint64_t;

typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1;  ///< for the functions that CUDA 3.2 replaced
typedef int CUdevice;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef unsigned long long CUtexObject;
typedef unsigned long long CUsurfObject;

// Handles: opaque pointers of the driver.
typedef struct CUctx_st* CUcontext;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;
typedef struct CUlib_st* CUlibrary;
typedef struct CUkern_st* CUkernel;
typedef struct CUarray_st* CUarray;
typedef struct CUmipmappedArray_st* CUmipmappedArray;
typedef struct CUevent_st* CUevent;
typedef struct CUstream_st* CUstream;
typedef struct CUgraphicsResource_st* CUgraphicsResource;
typedef struct CUextMemory_st* CUexternalMemory;
typedef struct CUextSemaphore_st* CUexternalSemaphore;
typedef struct CUgraph_st* CUgraph;
typedef struct CUgraphNode_st* CUgraphNode;
typedef struct CUgraphExec_st* CUgraphExec;
typedef struct CUmemPoolHandle_st* CUmemoryPool;
typedef struct CUgreenCtx_st* CUgreenCtx;
typedef struct CUdevResourceDesc_st* CUdevResourceDesc;

typedef void (*CUhostFn)(void* user_data);

#include "preload/cuda/abi/driver_enums.h"    // IWYU pragma: export
#include "preload/cuda/abi/driver_structs.h"  // IWYU pragma: export

typedef void (*CUstreamCallback)(CUstream stream, CUresult status, void* user_data);

// Newer than CUDA 13.0; only passed on.
typedef cuuint32_t CUlogicalEndpointId;
enum CUlogicalEndpointIpcHandleType : unsigned int;
enum CUgraphRecaptureStatus : unsigned int;
typedef CUresult (*CUgraphRecaptureCallback)(void* data, CUgraphNode node,
                                             const CUgraphNodeParams* original,
                                             const CUgraphNodeParams* recaptured,
                                             CUgraphRecaptureStatus status);

#define CU_STREAM_PER_THREAD (reinterpret_cast<CUstream>(0x2))
#define CU_DEVICE_INVALID (static_cast<CUdevice>(-2))
#define CU_LAUNCH_PARAM_END (reinterpret_cast<void*>(0x00))
#define CU_LAUNCH_PARAM_BUFFER_POINTER (reinterpret_cast<void*>(0x01))
#define CU_LAUNCH_PARAM_BUFFER_SIZE (reinterpret_cast<void*>(0x02))
#define CU_MEMHOSTALLOC_PORTABLE 0x01
#define CU_MEMHOSTREGISTER_PORTABLE 0x01
#define CU_MEM_CREATE_USAGE_TILE_POOL 0x1
