// Enumerations of the HIP binary interface, with the names and values of HIP 5.2. Included by
// hip_abi.h; not to be included alone. An enumeration whose values changed later is listed twice,
// the second time with the release in its names. Later enumerators are marked with their release.
// Values that this project does not use are omitted, so the underlying type, which is that of HIP,
// is written out: any other value may be passed on.
#pragma once

// Results of every function, and of hipRTC.

enum hipError_t : unsigned int {
  hipSuccess = 0,
  hipErrorInvalidValue = 1,
  hipErrorOutOfMemory = 2,
  hipErrorNotInitialized = 3,
  hipErrorInvalidConfiguration = 9,
  hipErrorInvalidPitchValue = 12,
  hipErrorInvalidSymbol = 13,
  hipErrorInvalidDevicePointer = 17,
  hipErrorInvalidMemcpyDirection = 21,
  hipErrorMissingConfiguration = 52,
  hipErrorInvalidDeviceFunction = 98,
  hipErrorNoDevice = 100,
  hipErrorInvalidDevice = 101,
  hipErrorInvalidImage = 200,
  hipErrorInvalidContext = 201,
  hipErrorMapFailed = 205,
  hipErrorNoBinaryForGpu = 209,
  hipErrorUnsupportedLimit = 215,
  hipErrorContextAlreadyInUse = 216,
  hipErrorFileNotFound = 301,
  hipErrorOperatingSystem = 304,
  hipErrorInvalidHandle = 400,
  hipErrorIllegalState = 401,
  hipErrorNotFound = 500,
  hipErrorNotReady = 600,
  hipErrorIllegalAddress = 700,
  hipErrorPeerAccessAlreadyEnabled = 704,
  hipErrorPeerAccessNotEnabled = 705,
  hipErrorContextIsDestroyed = 709,
  hipErrorHostMemoryAlreadyRegistered = 712,
  hipErrorHostMemoryNotRegistered = 713,
  hipErrorNotSupported = 801,
  hipErrorStreamCaptureUnsupported = 900,
  hipErrorStreamCaptureInvalidated = 901,
  hipErrorStreamCaptureUnmatched = 903,
  hipErrorStreamCaptureIsolation = 905,
  hipErrorStreamCaptureImplicit = 906,
  hipErrorCapturedEvent = 907,
  hipErrorStreamCaptureWrongThread = 908,
  hipErrorGraphExecUpdateFailure = 910,
  hipErrorUnknown = 999,
};

enum hiprtcResult : unsigned int {
  HIPRTC_SUCCESS = 0,
  HIPRTC_ERROR_INVALID_INPUT = 3,
  HIPRTC_ERROR_INVALID_PROGRAM = 4,
  HIPRTC_ERROR_COMPILATION = 6,
  HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION = 8,
  HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION = 9,
  HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID = 10,
  HIPRTC_ERROR_INTERNAL_ERROR = 11,
};

// Devices.

enum hipDeviceAttribute_t : unsigned int {
  hipDeviceAttributeCanMapHostMemory = 3,
  hipDeviceAttributeCanUseHostPointerForRegisteredMem = 4,
  hipDeviceAttributeClockRate = 5,
  hipDeviceAttributeComputeMode = 6,
  hipDeviceAttributeConcurrentKernels = 8,
  hipDeviceAttributeComputeCapabilityMajor = 23,
  hipDeviceAttributeManagedMemory = 24,
  hipDeviceAttributeMaxBlockDimX = 26,
  hipDeviceAttributeMaxBlockDimY = 27,
  hipDeviceAttributeMaxBlockDimZ = 28,
  hipDeviceAttributeMaxGridDimX = 29,
  hipDeviceAttributeMaxGridDimY = 30,
  hipDeviceAttributeMaxGridDimZ = 31,
  hipDeviceAttributeMaxThreadsDim = 55,
  hipDeviceAttributeMaxThreadsPerBlock = 56,
  hipDeviceAttributeMaxThreadsPerMultiProcessor = 57,
  hipDeviceAttributeComputeCapabilityMinor = 61,
  hipDeviceAttributeMultiprocessorCount = 63,
  hipDeviceAttributePciBusId = 67,
  hipDeviceAttributeMaxSharedMemoryPerBlock = 74,
  hipDeviceAttributeStreamPrioritiesSupported = 78,
  hipDeviceAttributeTextureAlignment = 81,
  hipDeviceAttributeTotalGlobalMem = 84,
  hipDeviceAttributeUnifiedAddressing = 85,
  hipDeviceAttributeWarpSize = 87,
  hipDeviceAttributeMemoryPoolsSupported = 88,
  hipDeviceAttributeVirtualMemoryManagementSupported = 89,  ///< since 5.3
  hipDeviceAttributeMaxSharedMemoryPerMultiprocessor = 10002,
  hipDeviceAttributeIsLargeBar = 10011,
};

enum hipDeviceP2PAttr : unsigned int {
  hipDevP2PAttrAccessSupported = 1,
  hipDevP2PAttrNativeAtomicSupported = 2,
};

enum hipLimit_t : unsigned int {
  hipLimitMallocHeapSize = 2,
};

// Memory.

enum hipMemoryType : unsigned int {
  hipMemoryTypeHost = 0,
  hipMemoryTypeDevice = 1,
  hipMemoryTypeUnified = 3,
  hipMemoryTypeManaged = 4,  ///< since 5.3
};

/// Replaces hipMemoryType in ROCm 6.0 and later.
enum hipMemoryTypeR0600 : unsigned int {
  hipMemoryTypeHostR0600 = 1,
  hipMemoryTypeDeviceR0600 = 2,
  hipMemoryTypeManagedR0600 = 3,
};

enum hipMemcpyKind : unsigned int {
  hipMemcpyHostToHost = 0,
  hipMemcpyHostToDevice = 1,
  hipMemcpyDeviceToHost = 2,
  hipMemcpyDeviceToDevice = 3,
  hipMemcpyDefault = 4,
  hipMemcpyDeviceToDeviceNoCU = 1024,  ///< since 6.1
};

enum hipPointer_attribute : unsigned int {
  HIP_POINTER_ATTRIBUTE_CONTEXT = 1,
  HIP_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
  HIP_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
  HIP_POINTER_ATTRIBUTE_HOST_POINTER = 4,
  HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
  HIP_POINTER_ATTRIBUTE_BUFFER_ID = 7,
  HIP_POINTER_ATTRIBUTE_IS_MANAGED = 8,
  HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
  HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE = 10,
  HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
  HIP_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
  HIP_POINTER_ATTRIBUTE_MAPPED = 13,
  HIP_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
  HIP_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
  HIP_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
  HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
};

// Virtual memory management and pools.

enum hipMemLocationType : unsigned int {
  hipMemLocationTypeDevice = 1,
  hipMemLocationTypeHostNuma = 3,  ///< since 7
};

enum hipMemAllocationType : unsigned int {
  hipMemAllocationTypePinned = 1,
};

enum hipMemAllocationHandleType : unsigned int {
  hipMemHandleTypeNone = 0,
  hipMemHandleTypePosixFileDescriptor = 1,
};

enum hipMemAccessFlags : unsigned int {
  hipMemAccessFlagsProtNone = 0,
  hipMemAccessFlagsProtRead = 1,
  hipMemAccessFlagsProtReadWrite = 3,
};

enum hipMemAllocationGranularity_flags : unsigned int {
  hipMemAllocationGranularityMinimum = 0,
  hipMemAllocationGranularityRecommended = 1,
};

enum hipMemPoolAttr : unsigned int {
  hipMemPoolReuseAllowOpportunistic = 2,
  hipMemPoolReuseAllowInternalDependencies = 3,
  hipMemPoolAttrReleaseThreshold = 4,
  hipMemPoolAttrReservedMemCurrent = 5,
  hipMemPoolAttrReservedMemHigh = 6,
  hipMemPoolAttrUsedMemCurrent = 7,
  hipMemPoolAttrUsedMemHigh = 8,
};

// Kernels and modules.

enum hipFunction_attribute : unsigned int {
  HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
  HIP_FUNC_ATTRIBUTE_NUM_REGS = 4,
  HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
};

enum hipFuncAttribute : unsigned int {
  hipFuncAttributeMaxDynamicSharedMemorySize = 8,
};

// Streams and graphs.

enum hipStreamCaptureMode : unsigned int {
  hipStreamCaptureModeGlobal = 0,
  hipStreamCaptureModeThreadLocal = 1,
  hipStreamCaptureModeRelaxed = 2,
};

enum hipStreamCaptureStatus : unsigned int {
  hipStreamCaptureStatusNone = 0,
  hipStreamCaptureStatusActive = 1,
  hipStreamCaptureStatusInvalidated = 2,
};

enum hipGraphNodeType : unsigned int {
  hipGraphNodeTypeMemset = 3,
};

/// Replaces hipGraphNodeType in ROCm 5.3 and later.
enum hipGraphNodeTypeR0503 : unsigned int {
  hipGraphNodeTypeMemsetR0503 = 2,
  hipGraphNodeTypeMemAllocR0503 = 10,  ///< since 5.5
};

enum hipGraphMemAttributeType : unsigned int {
  hipGraphMemAttrReservedMemCurrent = 2,  ///< since 5.3
};

enum hipGraphExecUpdateResult : unsigned int {
  hipGraphExecUpdateSuccess = 0,
  hipGraphExecUpdateErrorTopologyChanged = 2,
};

// Finding functions, and what else came later.

enum hipDriverProcAddressQueryResult : unsigned int {
  HIP_GET_PROC_ADDRESS_SUCCESS = 0,           ///< since 6.2
  HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,  ///< since 6.2
};

enum hipDriverEntryPointQueryResult : unsigned int {
  hipDriverEntryPointSuccess = 0,         ///< since 7.1
  hipDriverEntryPointSymbolNotFound = 1,  ///< since 7.1
};

// Passed on unchanged.

enum hipChannelFormatKind : unsigned int;
enum hipFuncCache_t : unsigned int;
enum hipJitOption : unsigned int;
enum hipLibraryOption : unsigned int;
enum hipMemRangeHandleType : unsigned int;
enum hipMemoryAdvise : unsigned int;
