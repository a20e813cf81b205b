// Structures of the HIP binary interface, with the names and layout of HIP 5.2. Included by
// hip_abi.h; not to be included alone. A structure whose layout changed later is listed twice, the
// second time with the release in its name. Structures that this project only passes on are
// declared but not defined.
#pragma once

// Identity.
typedef struct hipUUID_t {
  char bytes[16];
} hipUUID;

// Devices. Since ROCm 6.0, hipGetDeviceProperties is the symbol hipGetDevicePropertiesR0600.
typedef struct hipDeviceArch_t {
  unsigned int hasGlobalInt32Atomics : 1;
  unsigned int hasGlobalFloatAtomicExch : 1;
  unsigned int hasSharedInt32Atomics : 1;
  unsigned int hasSharedFloatAtomicExch : 1;
  unsigned int hasFloatAtomicAdd : 1;
  unsigned int hasGlobalInt64Atomics : 1;
  unsigned int hasSharedInt64Atomics : 1;
  unsigned int hasDoubles : 1;
  unsigned int hasWarpVote : 1;
  unsigned int hasWarpBallot : 1;
  unsigned int hasWarpShuffle : 1;
  unsigned int hasFunnelShift : 1;
  unsigned int hasThreadFenceSystem : 1;
  unsigned int hasSyncThreadsExt : 1;
  unsigned int hasSurfaceFuncs : 1;
  unsigned int has3dGrid : 1;
  unsigned int hasDynamicParallelism : 1;
} hipDeviceArch_t;
typedef struct hipDeviceProp_t {
  char name[256];
  std::size_t totalGlobalMem;
  std::size_t sharedMemPerBlock;
  int regsPerBlock;
  int warpSize;
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  int clockRate;
  int memoryClockRate;
  int memoryBusWidth;
  std::size_t totalConstMem;
  int major;
  int minor;
  int multiProcessorCount;
  int l2CacheSize;
  int maxThreadsPerMultiProcessor;
  int computeMode;
  int clockInstructionRate;
  hipDeviceArch_t arch;
  int concurrentKernels;
  int pciDomainID;
  int pciBusID;
  int pciDeviceID;
  std::size_t maxSharedMemoryPerMultiProcessor;
  int isMultiGpuBoard;
  int canMapHostMemory;
  int gcnArch;
  char gcnArchName[256];
  int integrated;
  int cooperativeLaunch;
  int cooperativeMultiDeviceLaunch;
  int maxTexture1DLinear;
  int maxTexture1D;
  int maxTexture2D[2];
  int maxTexture3D[3];
  unsigned int* hdpMemFlushCntl;
  unsigned int* hdpRegFlushCntl;
  std::size_t memPitch;
  std::size_t textureAlignment;
  std::size_t texturePitchAlignment;
  int kernelExecTimeoutEnabled;
  int ECCEnabled;
  int tccDriver;
  int cooperativeMultiDeviceUnmatchedFunc;
  int cooperativeMultiDeviceUnmatchedGridDim;
  int cooperativeMultiDeviceUnmatchedBlockDim;
  int cooperativeMultiDeviceUnmatchedSharedMem;
  int isLargeBar;
  int asicRevision;
  int managedMemory;
  int directManagedMemAccessFromHost;
  int concurrentManagedAccess;
  int pageableMemoryAccess;
  int pageableMemoryAccessUsesHostPageTables;
} hipDeviceProp_t;
/// Device properties of ROCm 6.0 and later.
typedef struct hipDeviceProp_tR0600 {
  char name[256];
  hipUUID uuid;
  char luid[8];
  unsigned int luidDeviceNodeMask;
  std::size_t totalGlobalMem;
  std::size_t sharedMemPerBlock;
  int regsPerBlock;
  int warpSize;
  std::size_t memPitch;
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  int clockRate;
  std::size_t totalConstMem;
  int major;
  int minor;
  std::size_t textureAlignment;
  std::size_t texturePitchAlignment;
  int deviceOverlap;
  int multiProcessorCount;
  int kernelExecTimeoutEnabled;
  int integrated;
  int canMapHostMemory;
  int computeMode;
  int maxTexture1D;
  int maxTexture1DMipmap;
  int maxTexture1DLinear;
  int maxTexture2D[2];
  int maxTexture2DMipmap[2];
  int maxTexture2DLinear[3];
  int maxTexture2DGather[2];
  int maxTexture3D[3];
  int maxTexture3DAlt[3];
  int maxTextureCubemap;
  int maxTexture1DLayered[2];
  int maxTexture2DLayered[3];
  int maxTextureCubemapLayered[2];
  int maxSurface1D;
  int maxSurface2D[2];
  int maxSurface3D[3];
  int maxSurface1DLayered[2];
  int maxSurface2DLayered[3];
  int maxSurfaceCubemap;
  int maxSurfaceCubemapLayered[2];
  std::size_t surfaceAlignment;
  int concurrentKernels;
  int ECCEnabled;
  int pciBusID;
  int pciDeviceID;
  int pciDomainID;
  int tccDriver;
  int asyncEngineCount;
  int unifiedAddressing;
  int memoryClockRate;
  int memoryBusWidth;
  int l2CacheSize;
  int persistingL2CacheMaxSize;
  int maxThreadsPerMultiProcessor;
  int streamPrioritiesSupported;
  int globalL1CacheSupported;
  int localL1CacheSupported;
  std::size_t sharedMemPerMultiprocessor;
  int regsPerMultiprocessor;
  int managedMemory;
  int isMultiGpuBoard;
  int multiGpuBoardGroupID;
  int hostNativeAtomicSupported;
  int singleToDoublePrecisionPerfRatio;
  int pageableMemoryAccess;
  int concurrentManagedAccess;
  int computePreemptionSupported;
  int canUseHostPointerForRegisteredMem;
  int cooperativeLaunch;
  int cooperativeMultiDeviceLaunch;
  std::size_t sharedMemPerBlockOptin;
  int pageableMemoryAccessUsesHostPageTables;
  int directManagedMemAccessFromHost;
  int maxBlocksPerMultiProcessor;
  int accessPolicyMaxWindowSize;
  std::size_t reservedSharedMemPerBlock;
  int hostRegisterSupported;
  int sparseHipArraySupported;
  int hostRegisterReadOnlySupported;
  int timelineSemaphoreInteropSupported;
  int memoryPoolsSupported;
  int gpuDirectRDMASupported;
  unsigned int gpuDirectRDMAFlushWritesOptions;
  int gpuDirectRDMAWritesOrdering;
  unsigned int memoryPoolSupportedHandleTypes;
  int deferredMappingHipArraySupported;
  int ipcEventSupported;
  int clusterLaunch;
  int unifiedFunctionPointers;
  int reserved[63];
  int hipReserved[32];
  char gcnArchName[256];
  std::size_t maxSharedMemoryPerMultiProcessor;
  int clockInstructionRate;
  hipDeviceArch_t arch;
  unsigned int* hdpMemFlushCntl;
  unsigned int* hdpRegFlushCntl;
  int cooperativeMultiDeviceUnmatchedFunc;
  int cooperativeMultiDeviceUnmatchedGridDim;
  int cooperativeMultiDeviceUnmatchedBlockDim;
  int cooperativeMultiDeviceUnmatchedSharedMem;
  int isLargeBar;
  int asicRevision;
} hipDeviceProp_tR0600;

// Inter-process memory.
typedef struct hipIpcMemHandle_st {
  char reserved[64];
} hipIpcMemHandle_t;
typedef struct hipIpcEventHandle_st {
  char reserved[64];
} hipIpcEventHandle_t;

// Virtual memory management and pools.
typedef struct hipMemLocation {
  hipMemLocationType type;
  int id;
} hipMemLocation;
typedef struct hipMemAllocationProp {
  unsigned char compressionType;
  hipMemLocation location;
  hipMemAllocationHandleType requestedHandleType;
  hipMemAllocationType type;
  unsigned short usage;
  void* win32HandleMetaData;
} hipMemAllocationProp;
/// hipMemAllocationProp of ROCm 5.3 and later. Before 7.0, requestedHandleTypes is named
/// requestedHandleType.
typedef struct hipMemAllocationPropR0503 {
  hipMemAllocationType type;
  hipMemAllocationHandleType requestedHandleTypes;
  hipMemLocation location;
  void* win32HandleMetaData;
  struct {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;
  } allocFlags;
} hipMemAllocationPropR0503;
typedef struct hipMemAccessDesc {
  hipMemLocation location;
  hipMemAccessFlags flags;
} hipMemAccessDesc;
typedef struct hipMemPoolProps {
  hipMemAllocationType allocType;
  hipMemAllocationHandleType handleTypes;
  hipMemLocation location;
  void* win32SecurityAttributes;
  unsigned char reserved[64];  ///< since 6.2 the first 8 bytes are std::size_t maxSize
} hipMemPoolProps;

// Pointers and copies.
typedef struct hipPointerAttribute_t {
  hipMemoryType memoryType;  ///< since 6.0 named type, with type hipMemoryTypeR0600
  int device;
  void* devicePointer;
  void* hostPointer;
  int isManaged;
  unsigned int allocationFlags;
} hipPointerAttribute_t;
typedef struct hipPitchedPtr {
  void* ptr;
  std::size_t pitch;
  std::size_t xsize;
  std::size_t ysize;
} hipPitchedPtr;
typedef struct hipExtent {
  std::size_t width;
  std::size_t height;
  std::size_t depth;
} hipExtent;
typedef struct hipPos {
  std::size_t x;
  std::size_t y;
  std::size_t z;
} hipPos;
typedef struct hipChannelFormatDesc {
  int x;
  int y;
  int z;
  int w;
  hipChannelFormatKind f;
} hipChannelFormatDesc;
typedef struct hip_Memcpy2D {
  std::size_t srcXInBytes;
  std::size_t srcY;
  hipMemoryType srcMemoryType;
  const void* srcHost;
  hipDeviceptr_t srcDevice;
  hipArray_t srcArray;
  std::size_t srcPitch;
  std::size_t dstXInBytes;
  std::size_t dstY;
  hipMemoryType dstMemoryType;
  void* dstHost;
  hipDeviceptr_t dstDevice;
  hipArray_t dstArray;
  std::size_t dstPitch;
  std::size_t WidthInBytes;
  std::size_t Height;
} hip_Memcpy2D;
typedef struct hipMemcpy3DParms {
  hipArray_t srcArray;
  hipPos srcPos;
  hipPitchedPtr srcPtr;
  hipArray_t dstArray;
  hipPos dstPos;
  hipPitchedPtr dstPtr;
  hipExtent extent;
  hipMemcpyKind kind;
} hipMemcpy3DParms;

// Launches.
typedef struct dim3 {
  std::uint32_t x = 1;
  std::uint32_t y = 1;
  std::uint32_t z = 1;
} dim3;
typedef struct hipLaunchParams_t {
  void* func;
  dim3 gridDim;
  dim3 blockDim;
  void** args;
  std::size_t sharedMem;
  hipStream_t stream;
} hipLaunchParams;
typedef struct hipFuncAttributes {
  int binaryVersion;
  int cacheModeCA;
  std::size_t constSizeBytes;
  std::size_t localSizeBytes;
  int maxDynamicSharedSizeBytes;
  int maxThreadsPerBlock;
  int numRegs;
  int preferredShmemCarveout;
  int ptxVersion;
  std::size_t sharedSizeBytes;
} hipFuncAttributes;

// Graphs.
typedef struct hipHostNodeParams {
  hipHostFn_t fn;
  void* userData;
} hipHostNodeParams;
typedef struct hipKernelNodeParams {
  dim3 blockDim;
  void** extra;
  void* func;
  dim3 gridDim;
  void** kernelParams;
  unsigned int sharedMemBytes;
} hipKernelNodeParams;
typedef struct hipMemsetParams {
  void* dst;
  unsigned int elementSize;
  std::size_t height;
  std::size_t pitch;
  unsigned int value;
  std::size_t width;
} hipMemsetParams;
/// Available since 5.5.
typedef struct hipMemAllocNodeParams {
  hipMemPoolProps poolProps;
  const hipMemAccessDesc* accessDescs;
  std::size_t accessDescCount;
  std::size_t bytesize;
  void* dptr;
} hipMemAllocNodeParams;
/// Available since 6.2; declares only the allocation node.
typedef struct hipGraphNodeParams {
  hipGraphNodeTypeR0503 type;
  int reserved0[3];
  union {
    long long reserved1[29];
    hipMemAllocNodeParams alloc;
  };
  long long reserved2;
} hipGraphNodeParams;

// Passed on unchanged. HIP 5.2 has those before the blank line.
typedef struct hipMemPoolPtrExportData hipMemPoolPtrExportData;
typedef struct HIP_ARRAY_DESCRIPTOR HIP_ARRAY_DESCRIPTOR;
typedef struct HIP_ARRAY3D_DESCRIPTOR HIP_ARRAY3D_DESCRIPTOR;
typedef struct HIP_MEMCPY3D HIP_MEMCPY3D;
typedef struct hipExternalMemoryHandleDesc_st hipExternalMemoryHandleDesc;
typedef struct hipExternalMemoryBufferDesc_st hipExternalMemoryBufferDesc;
typedef struct textureReference textureReference;
typedef struct hipTextureDesc hipTextureDesc;
typedef struct hipResourceDesc hipResourceDesc;
typedef struct hipResourceViewDesc hipResourceViewDesc;
typedef struct HIP_TEXTURE_DESC_st HIP_TEXTURE_DESC;
typedef struct HIP_RESOURCE_DESC_st HIP_RESOURCE_DESC;
typedef struct HIP_RESOURCE_VIEW_DESC_st HIP_RESOURCE_VIEW_DESC;
typedef struct hipExternalSemaphoreHandleDesc_st hipExternalSemaphoreHandleDesc;
typedef struct hipExternalSemaphoreSignalParams_st hipExternalSemaphoreSignalParams;
typedef struct hipExternalSemaphoreWaitParams_st hipExternalSemaphoreWaitParams;
typedef struct hipArrayMapInfo hipArrayMapInfo;

typedef struct hipExternalMemoryMipmappedArrayDesc_st hipExternalMemoryMipmappedArrayDesc;
typedef struct hipExternalSemaphoreSignalNodeParams hipExternalSemaphoreSignalNodeParams;
typedef struct hipExternalSemaphoreWaitNodeParams hipExternalSemaphoreWaitNodeParams;
typedef struct hipBatchMemOpNodeParams hipBatchMemOpNodeParams;
typedef struct hipFunctionLaunchParams_t hipFunctionLaunchParams;
typedef struct hipGraphEdgeData hipGraphEdgeData;
typedef struct hipGraphInstantiateParams hipGraphInstantiateParams;
typedef struct hipLaunchConfig_st hipLaunchConfig_t;
typedef struct HIP_LAUNCH_CONFIG_st HIP_LAUNCH_CONFIG;
typedef struct hipMemcpyAttributes hipMemcpyAttributes;
typedef struct hipMemcpy3DBatchOp hipMemcpy3DBatchOp;
typedef struct hipMemcpy3DPeerParms hipMemcpy3DPeerParms;
typedef union hipStreamBatchMemOpParams_union hipStreamBatchMemOpParams;
