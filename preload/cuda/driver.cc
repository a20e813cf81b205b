// Implements Driver (preload/memory/driver.h) with CUDA's functions.
#include <new>

#include "preload/checkpoint_memory.h"
#include "preload/cuda/face.h"
#include "preload/cuda/real_driver.h"

namespace gcr::preload {
namespace {

CUmemAllocationProp exportable(CUmemLocation location, bool for_rdma) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = location;
  properties.allocFlags.gpuDirectRDMACapable = for_rdma ? 1 : 0;
  return properties;
}

CUmemAllocationProp on_device(int device, bool for_rdma) {
  return exportable({CU_MEM_LOCATION_TYPE_DEVICE, device}, for_rdma);
}

bool attribute(CUdevice_attribute what, int device, int* value) {
  return real::cuDeviceGetAttribute(value, what, device) == CUDA_SUCCESS;
}

template <class T>
T attribute_of(CUmemoryPool pool, CUmemPool_attribute attribute) {
  T value{};
  real::cuMemPoolGetAttribute(pool, attribute, &value);
  return value;
}

class CudaDriver final : public Driver {
 public:
  Result create(Handle* handle, std::size_t size_bytes, int device, bool for_rdma) override {
    const CUmemAllocationProp properties = on_device(device, for_rdma);
    return from_cuda(real::cuMemCreate(handle, size_bytes, &properties, 0));
  }
  bool can_create_on_host() override { return true; }
  Result create_on_host(Handle* handle, std::size_t size_bytes, int device, int* node) override {
    if (!attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device, node) || *node < 0) *node = 0;
    const CUmemAllocationProp properties =
        exportable({CU_MEM_LOCATION_TYPE_HOST_NUMA, *node}, false);
    return from_cuda(real::cuMemCreate(handle, size_bytes, &properties, 0));
  }
  Result create_as(Handle* handle, std::size_t size_bytes, const Asked& asked,
                   unsigned long long flags) override {
    auto properties = asked.kept<CUmemAllocationProp>();
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return from_cuda(real::cuMemCreate(handle, size_bytes, &properties, flags));
  }
  Result release(Handle handle) override { return from_cuda(real::cuMemRelease(handle)); }
  Result export_descriptor(int* fd, Handle handle) override {
    return from_cuda(real::cuMemExportToShareableHandle(
        fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  }
  Result import_descriptor(Handle* handle, int fd) override {
    return from_cuda(real::cuMemImportFromShareableHandle(
        handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  }
  Result properties_of(Handle handle, Asked* asked) override {
    CUmemAllocationProp told{};
    const CUresult result = real::cuMemGetAllocationPropertiesFromHandle(&told, handle);
    if (result == CUDA_SUCCESS) *asked = from_cuda(told);
    return from_cuda(result);
  }

  Result reserve(Address* address, std::size_t size_bytes, std::size_t alignment_bytes) override {
    return from_cuda(real::cuMemAddressReserve(address, size_bytes, alignment_bytes, 0, 0));
  }
  Result free_addresses(Address address, std::size_t size_bytes) override {
    return from_cuda(real::cuMemAddressFree(address, size_bytes));
  }
  Result map(Address address, std::size_t size_bytes, std::size_t offset_bytes,
             Handle handle) override {
    return from_cuda(real::cuMemMap(address, size_bytes, offset_bytes, handle, 0));
  }
  Result unmap(Address address, std::size_t size_bytes) override {
    return from_cuda(real::cuMemUnmap(address, size_bytes));
  }
  Result set_access(Address address, std::size_t size_bytes,
                    std::span<const Access> accesses) override {
    CUmemAccessDesc own[kMaxDevices];
    for (std::size_t done = 0; done < accesses.size();) {
      std::size_t count = 0;
      for (; done < accesses.size() && count < kMaxDevices; ++done) {
        const Access& access = accesses[done];
        own[count++] = {{static_cast<CUmemLocationType>(access.location_type), access.id},
                        static_cast<CUmemAccess_flags>(access.rights)};
      }
      const CUresult result = real::cuMemSetAccess(address, size_bytes, own, count);
      if (result != CUDA_SUCCESS) return from_cuda(result);
    }
    return Result::kSuccess;
  }

  DeviceFacts facts(int device) override {
    DeviceFacts facts;
    facts.asked = true;
    facts.uuid = uuid(device);
    int vmm = 0, posix_fd = 0, rdma = 0;
    if (!attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device, &vmm) || !vmm ||
        !attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device,
                   &posix_fd) ||
        !posix_fd) {
      return facts;
    }
    // RDMA reaches memory from cuMemAlloc on every device that supports RDMA.
    facts.rdma_capable =
        attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device, &rdma) &&
        rdma != 0;
    const CUmemAllocationProp properties = on_device(device, facts.rdma_capable);
    facts.can_back =
        real::cuMemGetAllocationGranularity(&facts.granularity_bytes, &properties,
                                            CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS &&
        facts.granularity_bytes != 0;
    return facts;
  }
  DeviceUuid uuid(int device) override {
    CUuuid uuid{};
    if (real::cuDeviceGetUuid_v2(&uuid, device) != CUDA_SUCCESS) {
      real::cuDeviceGetUuid(&uuid, device);
    }
    DeviceUuid own{};
    static_assert(sizeof(own.bytes) == sizeof(uuid.bytes));
    std::memcpy(own.bytes, uuid.bytes, sizeof(own.bytes));
    return own;
  }
  Result smallest_pitch(std::size_t* pitch_bytes) override {
    CUdeviceptr row = 0;
    const CUresult result = real::cuMemAllocPitch_v2(&row, pitch_bytes, 4, 1, 4);
    if (result == CUDA_SUCCESS) real::cuMemFree_v2(row);
    return from_cuda(result);
  }
  Result free_memory(std::size_t* free_bytes) override {
    std::size_t total_bytes = 0;
    return from_cuda(real::cuMemGetInfo_v2(free_bytes, &total_bytes));
  }
  Result graph_memory(int device, std::uint64_t* bytes) override {
    return from_cuda(
        real::cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes));
  }

  Result current(Context** context) override {
    return get<CUcontext>(context, [&](auto* own) { return real::cuCtxGetCurrent(own); });
  }
  Result current_device(int* device) override { return from_cuda(real::cuCtxGetDevice(device)); }
  Result enter(Context* context, Context**) override {
    return from_cuda(real::cuCtxPushCurrent_v2(to_cuda(context)));
  }
  void leave(Context*) override {
    CUcontext popped = nullptr;
    real::cuCtxPopCurrent_v2(&popped);
  }
  Result synchronize() override { return from_cuda(real::cuCtxSynchronize()); }
  bool is_managed(Address address) override {
    unsigned int managed = 0;
    return real::cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) ==
               CUDA_SUCCESS &&
           managed != 0;
  }
  bool primary_is_active(int device) override {
    unsigned int flags = 0;
    int active = 1;
    return real::cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || active != 0;
  }
  Result stack_limit(std::size_t* bytes) override {
    unsigned int flags = 0;
    const CUresult result = real::cuCtxGetFlags(&flags);
    if (result != CUDA_SUCCESS) return from_cuda(result);
    if ((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC) return Result::kNotSupported;
    return from_cuda(real::cuCtxGetLimit(bytes, CU_LIMIT_STACK_SIZE));
  }
  Result set_stack_limit(std::size_t bytes) override {
    return from_cuda(real::cuCtxSetLimit(CU_LIMIT_STACK_SIZE, bytes));
  }
  // The driver fills a rectangle with a kernel; it fills short or single rows without one.
  Result settle_stack_limit() override {
    constexpr std::size_t kPitch = 1031, kWidth = 777, kRows = 501;
    CUdeviceptr rectangle = 0;
    CUresult result = real::cuMemAlloc_v2(&rectangle, kPitch * kRows);
    if (result != CUDA_SUCCESS) return from_cuda(result);
    result = real::cuMemsetD2D8_v2(rectangle, kPitch, 0, kWidth, kRows);
    real::cuMemFree_v2(rectangle);
    return from_cuda(result);
  }

  Result stream_number(Stream* stream, std::uint64_t* number) override {
    unsigned long long id = 0;
    const CUresult result = real::cuStreamGetId(to_cuda(stream), &id);
    *number = id + 1;  // 0 means no stream
    return from_cuda(result);
  }
  Result stream_context(Stream* stream, Context** context, int* device) override {
    CUcontext own = nullptr;
    CUresult result = real::cuStreamGetCtx(to_cuda(stream), &own);
    if (result != CUDA_SUCCESS) return from_cuda(result);
    result = real::cuCtxPushCurrent_v2(own);
    if (result != CUDA_SUCCESS) return from_cuda(result);
    result = real::cuCtxGetDevice(device);
    leave(nullptr);
    *context = from_cuda(own);
    return from_cuda(result);
  }
  Result is_capturing(Stream* stream, bool* capturing) override {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    const CUresult result = real::cuStreamIsCapturing(to_cuda(stream), &status);
    *capturing = status != CU_STREAM_CAPTURE_STATUS_NONE;
    return from_cuda(result);
  }
  Result exchange_capture_mode(int* mode) override {
    auto own = static_cast<CUstreamCaptureMode>(*mode);
    const CUresult result = real::cuThreadExchangeStreamCaptureMode(&own);
    *mode = static_cast<int>(own);
    return from_cuda(result);
  }
  Result create_event(Event** event) override {
    return get<CUevent>(
        event, [&](auto* own) { return real::cuEventCreate(own, CU_EVENT_DISABLE_TIMING); });
  }
  void destroy_event(Event* event) override { real::cuEventDestroy_v2(to_cuda(event)); }
  Result record(Event* event, Stream* stream) override {
    return from_cuda(real::cuEventRecord(to_cuda(event), to_cuda(stream)));
  }
  Result query(Event* event) override { return from_cuda(real::cuEventQuery(to_cuda(event))); }
  Result wait_for(Stream* stream, Event* event) override {
    return from_cuda(real::cuStreamWaitEvent(to_cuda(stream), to_cuda(event), 0));
  }
  Result copy(Address to, Address from, std::size_t size_bytes) override {
    return from_cuda(real::cuMemcpy(to, from, size_bytes));
  }

  Result current_pool(int device, PoolHandle** pool) override {
    return get<CUmemoryPool>(pool,
                             [&](auto* own) { return real::cuDeviceGetMemPool(own, device); });
  }
  Result default_pool(int device, PoolHandle** pool) override {
    return get<CUmemoryPool>(
        pool, [&](auto* own) { return real::cuDeviceGetDefaultMemPool(own, device); });
  }
  PoolBehaviour behaviour_of(PoolHandle* pool) override {
    const CUmemoryPool own = to_cuda(pool);
    return {.threshold_bytes = attribute_of<cuuint64_t>(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD),
            .opportunistic = attribute_of<int>(own, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC) != 0,
            .internal_dependencies =
                attribute_of<int>(own, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) != 0};
  }

  void before_checkpoint() override { checkpoint_memory::intercept_calls(); }
  void after_restore() override { checkpoint_memory::restore_calls(); }

  void pass_all_calls() override {
    g_real_driver.leave_calls_alone();
    checkpoint_memory::restore_calls();
  }
  std::span<const std::string_view> files() override { return kFiles; }

 private:
  static constexpr std::string_view kFiles[] = {"/dev/nvidia"};
};

constinit CudaDriver g_cuda_driver;
alignas(Runtime) constinit unsigned char g_cuda_storage[sizeof(Runtime)] = {};

}  // namespace

Runtime& cuda() {
  static Runtime* const instance = new (g_cuda_storage) Runtime(g_cuda_driver, 0);
  return *instance;
}

Asked from_cuda(const CUmemAllocationProp& properties) {
  constexpr unsigned int kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const CUmemLocation& location = properties.location;
  const bool on_host = location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  const bool on_device = location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id < kMaxDevices;
  Asked asked;
  asked.trackable = properties.type == CU_MEM_ALLOCATION_TYPE_PINNED && (on_device || on_host) &&
                    location.id >= 0 &&
                    (static_cast<unsigned int>(properties.requestedHandleTypes) & ~kFd) == 0 &&
                    (properties.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL) == 0;
  if (on_device) asked.device = location.id;
  if (on_host) asked.host_node = location.id;
  asked.handle_types = static_cast<unsigned int>(properties.requestedHandleTypes);
  asked.keep(properties);
  return asked;
}

}  // namespace gcr::preload
