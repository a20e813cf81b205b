// Implements Driver (preload/memory/driver.h) with HIP's functions. Not tested on a GPU: see
// docs/hip.md.
#include <ctype.h>

#include <algorithm>
#include <map>
#include <new>

#include "preload/hip/face.h"
#include "preload/hip/real_hip.h"

namespace gcr::preload {
namespace {

const hipMemAllocationProp* as_declared(const hipMemAllocationPropR0503& properties) {
  return reinterpret_cast<const hipMemAllocationProp*>(&properties);
}

hipMemAllocationPropR0503 on_device(int device) {
  hipMemAllocationPropR0503 properties{};
  properties.type = hipMemAllocationTypePinned;
  properties.requestedHandleTypes = hipMemHandleTypePosixFileDescriptor;
  properties.location = {hipMemLocationTypeDevice, device};
  return properties;
}

Result create_with(Handle* handle, std::size_t size_bytes,
                   const hipMemAllocationPropR0503& properties, unsigned long long flags) {
  hipMemGenericAllocationHandle_t own = nullptr;
  const hipError_t result = real::hipMemCreate(&own, size_bytes, as_declared(properties), flags);
  *handle = from_hip(own);
  return from_hip(result);
}

bool is_default(Stream* stream) { return stream == nullptr || stream == kLegacyStream; }

/// Assigns numbers to streams, which HIP does not do. Numbers of default streams derive from the
/// device.
class StreamNumbers {
 public:
  std::uint64_t of(Stream* stream, int device) {
    if (is_default(stream)) return static_cast<std::uint64_t>(device) + 1;
    if (stream == kPerThreadStream) return of_this_thread(device);
    const std::lock_guard lock(mutex_);
    std::uint64_t& number = named_[stream];
    if (number == 0) number = next();
    return number;
  }
  void forget(Stream* stream) {
    const std::lock_guard lock(mutex_);
    named_.erase(stream);
  }

 private:
  std::uint64_t next() { return next_.fetch_add(1, std::memory_order_relaxed); }

  /// The number of the calling thread's default stream on `device`.
  std::uint64_t of_this_thread(int device) {
    static constinit thread_local std::uint64_t t_numbers[kMaxDevices] = {};
    std::uint64_t& number = t_numbers[device];
    if (number == 0) number = next();
    return number;
  }

  std::mutex mutex_;
  std::map<Stream*, std::uint64_t> named_;
  std::atomic<std::uint64_t> next_{kMaxDevices + 1};
};

StreamNumbers& stream_numbers() {
  alignas(StreamNumbers) static unsigned char storage[sizeof(StreamNumbers)];
  static StreamNumbers* const numbers = new (storage) StreamNumbers;
  return *numbers;
}

class HipDriver final : public Driver {
 public:
  Result create(Handle* handle, std::size_t size_bytes, int device, bool) override {
    return create_with(handle, size_bytes, on_device(device), 0);
  }
  bool can_create_on_host() override { return false; }
  Result create_on_host(Handle*, std::size_t, int, int*) override { return Result::kNotSupported; }
  Result create_as(Handle* handle, std::size_t size_bytes, const Asked& asked,
                   unsigned long long flags) override {
    auto properties = asked.kept<hipMemAllocationPropR0503>();
    properties.requestedHandleTypes = hipMemHandleTypePosixFileDescriptor;
    return create_with(handle, size_bytes, properties, flags);
  }
  Result release(Handle handle) override { return from_hip(real::hipMemRelease(to_hip(handle))); }
  Result export_descriptor(int* fd, Handle handle) override {
    return from_hip(real::hipMemExportToShareableHandle(fd, to_hip(handle),
                                                        hipMemHandleTypePosixFileDescriptor, 0));
  }
  Result import_descriptor(Handle* handle, int fd) override {
    hipMemGenericAllocationHandle_t own = nullptr;
    void* const where = hip_release() >= kRelease7_1
                            ? reinterpret_cast<void*>(static_cast<std::intptr_t>(fd))
                            : &fd;
    const hipError_t result =
        real::hipMemImportFromShareableHandle(&own, where, hipMemHandleTypePosixFileDescriptor);
    *handle = from_hip(own);
    return from_hip(result);
  }
  Result properties_of(Handle handle, Asked* asked) override {
    hipMemAllocationProp told{};
    const hipError_t result = real::hipMemGetAllocationPropertiesFromHandle(&told, to_hip(handle));
    if (result == hipSuccess) *asked = from_hip(told);
    return from_hip(result);
  }

  Result reserve(Address* address, std::size_t size_bytes, std::size_t alignment_bytes) override {
    void* own = nullptr;
    const hipError_t result =
        real::hipMemAddressReserve(&own, size_bytes, alignment_bytes, nullptr, 0);
    *address = address_of(own);
    return from_hip(result);
  }
  Result free_addresses(Address address, std::size_t size_bytes) override {
    return from_hip(real::hipMemAddressFree(pointer_to(address), size_bytes));
  }
  Result map(Address address, std::size_t size_bytes, std::size_t offset_bytes,
             Handle handle) override {
    return from_hip(
        real::hipMemMap(pointer_to(address), size_bytes, offset_bytes, to_hip(handle), 0));
  }
  Result unmap(Address address, std::size_t size_bytes) override {
    return from_hip(real::hipMemUnmap(pointer_to(address), size_bytes));
  }
  Result set_access(Address address, std::size_t size_bytes,
                    std::span<const Access> accesses) override {
    hipMemAccessDesc own[kMaxDevices];
    for (std::size_t done = 0; done < accesses.size();) {
      std::size_t count = 0;
      for (; done < accesses.size() && count < kMaxDevices; ++done) {
        const Access& access = accesses[done];
        own[count++] = {{static_cast<hipMemLocationType>(access.location_type), access.id},
                        static_cast<hipMemAccessFlags>(access.rights)};
      }
      const hipError_t result = real::hipMemSetAccess(pointer_to(address), size_bytes, own, count);
      if (result != hipSuccess) return from_hip(result);
    }
    return Result::kSuccess;
  }

  DeviceFacts facts(int device) override {
    DeviceFacts facts;
    facts.asked = true;
    facts.uuid = uuid(device);
    int vmm = 0;
    if (hip_release() < kRelease5_3 ||
        real::hipDeviceGetAttribute(&vmm, hipDeviceAttributeVirtualMemoryManagementSupported,
                                    device) != hipSuccess ||
        vmm == 0) {
      return facts;
    }
    const hipMemAllocationPropR0503 properties = on_device(device);
    facts.can_back =
        real::hipMemGetAllocationGranularity(&facts.granularity_bytes, as_declared(properties),
                                             hipMemAllocationGranularityMinimum) == hipSuccess &&
        facts.granularity_bytes != 0;
    // At least 2 MiB, the unit of arenas and of CUDA.
    facts.granularity_bytes = std::max(facts.granularity_bytes, kSmallestMediumBytes);
    return facts;
  }
  /// HIP's UUID is the 16 hexadecimal digits of the GPU's unique id, or other text for a GPU
  /// without one; then the PCI address identifies the GPU.
  DeviceUuid uuid(int device) override {
    hipUUID uuid{};
    DeviceUuid own{};
    static_assert(sizeof(own.bytes) == sizeof(uuid.bytes));
    const bool has_number =
        real::hipDeviceGetUuid(&uuid, device) == hipSuccess &&
        std::ranges::all_of(uuid.bytes, [](unsigned char c) { return ::isxdigit(c) != 0; });
    if (has_number) {
      std::memcpy(own.bytes, uuid.bytes, sizeof(own.bytes));
      return own;
    }
    char bus_id[64] = "";
    real::hipDeviceGetPCIBusId(bus_id, sizeof(bus_id) - 1, device);
    std::memcpy(own.bytes, bus_id, sizeof(own.bytes));
    return own;
  }
  Result smallest_pitch(std::size_t* pitch_bytes) override {
    void* row = nullptr;
    const hipError_t result = real::hipMallocPitch(&row, pitch_bytes, 4, 1);
    if (result == hipSuccess) real::hipFree(row);
    return from_hip(result);
  }
  Result free_memory(std::size_t* free_bytes) override {
    std::size_t total_bytes = 0;
    return from_hip(real::hipMemGetInfo(free_bytes, &total_bytes));
  }
  Result graph_memory(int device, std::uint64_t* bytes) override {
    return from_hip(
        real::hipDeviceGetGraphMemAttribute(device, hipGraphMemAttrReservedMemCurrent, bytes));
  }

  Result current(Context** context) override {
    int device = 0;
    const hipError_t result = real::hipGetDevice(&device);
    *context = result == hipSuccess ? context_of(device) : nullptr;
    return from_hip(result);
  }
  Result current_device(int* device) override { return from_hip(real::hipGetDevice(device)); }
  Result enter(Context* context, Context** previous) override {
    const Result known = current(previous);
    if (known != Result::kSuccess) return known;
    return *previous == context ? Result::kSuccess
                                : from_hip(real::hipSetDevice(device_of(context)));
  }
  void leave(Context* previous) override {
    Context* now = nullptr;
    if (current(&now) == Result::kSuccess && now == previous) return;
    real::hipSetDevice(device_of(previous));
  }
  /// Does not touch a device that the process does not use.
  Result synchronize() override {
    int device = 0;
    const hipError_t known = real::hipGetDevice(&device);
    if (known != hipSuccess) return from_hip(known);
    return primary_is_active(device) ? from_hip(real::hipDeviceSynchronize()) : Result::kSuccess;
  }
  bool is_managed(Address address) override {
    unsigned int managed = 0;
    return real::hipPointerGetAttribute(&managed, HIP_POINTER_ATTRIBUTE_IS_MANAGED,
                                        pointer_to(address)) == hipSuccess &&
           managed != 0;
  }
  bool primary_is_active(int device) override {
    unsigned int flags = 0;
    int active = 1;
    return real::hipDevicePrimaryCtxGetState(device, &flags, &active) != hipSuccess || active != 0;
  }
  // HIP allocates stacks on demand, so there is no limit to lower.
  Result stack_limit(std::size_t*) override { return Result::kNotSupported; }
  Result set_stack_limit(std::size_t) override { return Result::kNotSupported; }
  Result settle_stack_limit() override { return Result::kNotSupported; }

  Result stream_number(Stream* stream, std::uint64_t* number) override {
    int device = 0;
    const hipError_t result = real::hipGetDevice(&device);
    if (result != hipSuccess) return from_hip(result);
    if (device < 0 || device >= kMaxDevices) return Result::kInvalidValue;
    *number = stream_numbers().of(stream, device);
    return Result::kSuccess;
  }
  Result stream_context(Stream* stream, Context** context, int* device) override {
    const bool has_name = !is_default(stream) && stream != kPerThreadStream;
    const hipError_t result =
        has_name ? real::hipStreamGetDevice(to_hip(stream), device) : real::hipGetDevice(device);
    if (result == hipSuccess) *context = context_of(*device);
    return from_hip(result);
  }
  Result is_capturing(Stream* stream, bool* capturing) override {
    hipStreamCaptureStatus status = hipStreamCaptureStatusActive;
    const hipError_t result = real::hipStreamIsCapturing(to_hip(stream), &status);
    *capturing = status != hipStreamCaptureStatusNone;
    return from_hip(result);
  }
  Result exchange_capture_mode(int* mode) override {
    auto own = static_cast<hipStreamCaptureMode>(*mode);
    const hipError_t result = real::hipThreadExchangeStreamCaptureMode(&own);
    *mode = static_cast<int>(own);
    return from_hip(result);
  }
  Result create_event(Event** event) override {
    return get<hipEvent_t>(event, [&](auto* own) {
      return real::hipEventCreateWithFlags(own, hipEventDisableTiming);
    });
  }
  void destroy_event(Event* event) override { real::hipEventDestroy(to_hip(event)); }
  Result record(Event* event, Stream* stream) override {
    return from_hip(real::hipEventRecord(to_hip(event), to_hip(stream)));
  }
  Result query(Event* event) override { return from_hip(real::hipEventQuery(to_hip(event))); }
  Result wait_for(Stream* stream, Event* event) override {
    return from_hip(real::hipStreamWaitEvent(to_hip(stream), to_hip(event), 0));
  }
  Result copy(Address to, Address from, std::size_t size_bytes) override {
    return from_hip(
        real::hipMemcpy(pointer_to(to), pointer_to(from), size_bytes, hipMemcpyDefault));
  }

  Result current_pool(int device, PoolHandle** pool) override {
    return get<hipMemPool_t>(pool,
                             [&](auto* own) { return real::hipDeviceGetMemPool(own, device); });
  }
  Result default_pool(int device, PoolHandle** pool) override {
    return get<hipMemPool_t>(
        pool, [&](auto* own) { return real::hipDeviceGetDefaultMemPool(own, device); });
  }
  PoolBehaviour behaviour_of(PoolHandle* pool) override {
    PoolBehaviour behaviour;
    int opportunistic = 0, internal_dependencies = 0;
    const hipMemPool_t own = to_hip(pool);
    real::hipMemPoolGetAttribute(own, hipMemPoolAttrReleaseThreshold, &behaviour.threshold_bytes);
    real::hipMemPoolGetAttribute(own, hipMemPoolReuseAllowOpportunistic, &opportunistic);
    real::hipMemPoolGetAttribute(own, hipMemPoolReuseAllowInternalDependencies,
                                 &internal_dependencies);
    behaviour.opportunistic = opportunistic != 0;
    behaviour.internal_dependencies = internal_dependencies != 0;
    return behaviour;
  }

  void pass_all_calls() override { g_real_hip.leave_calls_alone(); }
  std::span<const std::string_view> files() override { return kFiles; }

 private:
  static constexpr std::string_view kFiles[] = {"/dev/kfd", "/dev/dri/render"};
};

constinit HipDriver g_hip_driver;
alignas(Runtime) constinit unsigned char g_hip_storage[sizeof(Runtime)] = {};

}  // namespace

Runtime& hip() {
  static Runtime* const instance = new (g_hip_storage) Runtime(g_hip_driver, 1);
  return *instance;
}

int hip_release() {
  static constinit std::atomic<int> known{0};
  int release = known.load(std::memory_order_relaxed);
  if (release == 0 && real::hipRuntimeGetVersion(&release) == hipSuccess) {
    known.store(release, std::memory_order_relaxed);
  }
  return release;
}

Asked from_hip(const hipMemAllocationProp& declared) {
  Asked asked;
  if (hip_release() < kRelease5_3) return asked;
  hipMemAllocationPropR0503 properties;
  static_assert(sizeof(properties) == sizeof(declared));
  std::memcpy(&properties, &declared, sizeof(properties));
  constexpr unsigned int kFd = hipMemHandleTypePosixFileDescriptor;
  const hipMemLocation& location = properties.location;
  const bool on_device =
      location.type == hipMemLocationTypeDevice && location.id >= 0 && location.id < kMaxDevices;
  asked.trackable = properties.type == hipMemAllocationTypePinned && on_device &&
                    (static_cast<unsigned int>(properties.requestedHandleTypes) & ~kFd) == 0;
  if (on_device) asked.device = location.id;
  asked.handle_types = static_cast<unsigned int>(properties.requestedHandleTypes);
  asked.keep(properties);
  return asked;
}

void forget_stream_number(hipStream_t stream) { stream_numbers().forget(from_hip(stream)); }

}  // namespace gcr::preload
