// A GPU through HIP: the calling thread's device is set before each call.
#include "migrate-agent/gpu/device/calls.h"

#include <fmt/format.h>

#include <memory>

#include "migrate-agent/gpu/device/hip/library.h"

namespace gcr::device::hip {
namespace {

hipMemAllocationPropR0503 properties_on(int ordinal) {
  hipMemAllocationPropR0503 properties{};
  properties.type = hipMemAllocationTypePinned;
  properties.requestedHandleTypes = hipMemHandleTypePosixFileDescriptor;
  properties.location.type = hipMemLocationTypeDevice;
  properties.location.id = ordinal;
  return properties;
}

hipDeviceptr_t pointer_to(Address address) { return reinterpret_cast<hipDeviceptr_t>(address); }

class HipCalls final : public Calls {
 public:
  HipCalls(std::shared_ptr<const Library> library, int ordinal)
      : hip_(std::move(library)), ordinal_(ordinal) {}

  Status enter() const override {
    return hip_->check(hip_->hipSetDevice(ordinal_), "cannot choose the agent's GPU");
  }

  Result<std::uint64_t> free_bytes() const override {
    std::size_t free = 0;
    std::size_t total = 0;
    GCR_TRY(hip_->check(hip_->hipMemGetInfo(&free, &total)));
    return static_cast<std::uint64_t>(free);
  }

  Result<unsigned> processors() const override {
    int processors = 0;
    GCR_TRY(hip_->check(
        hip_->hipDeviceGetAttribute(&processors, hipDeviceAttributeMultiprocessorCount, ordinal_)));
    return static_cast<unsigned>(processors);
  }

  Result<Handle> create_memory(std::uint64_t bytes,
                               std::optional<std::uint32_t> host_node) const override {
    if (host_node) return Error(Code::kUnsupported, "HIP makes no host memory of this kind");
    const hipMemAllocationPropR0503 properties = properties_on(ordinal_);
    hipMemGenericAllocationHandle_t handle = nullptr;
    GCR_TRY(hip_->check(hip_->hipMemCreate(&handle, bytes, &properties, 0)));
    return reinterpret_cast<Handle>(handle);
  }

  Result<UniqueFd> export_memory(Handle handle) const override {
    int descriptor = -1;
    GCR_TRY(hip_->check(hip_->hipMemExportToShareableHandle(
        &descriptor, memory_of(handle), hipMemHandleTypePosixFileDescriptor, 0)));
    return UniqueFd(descriptor);
  }

  Result<Handle> import_memory(int descriptor) const override {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    void* const value = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor));
    hipMemGenericAllocationHandle_t handle = nullptr;
    GCR_TRY(hip_->check(hip_->hipMemImportFromShareableHandle(
        &handle, hip_->imports_by_value() ? value : &descriptor,
        hipMemHandleTypePosixFileDescriptor)));
    return reinterpret_cast<Handle>(handle);
  }

  void release_memory(Handle handle) const override { hip_->hipMemRelease(memory_of(handle)); }

  Result<Address> reserve(std::uint64_t bytes) const override {
    void* address = nullptr;
    GCR_TRY(hip_->check(hip_->hipMemAddressReserve(&address, bytes, 0, nullptr, 0)));
    return reinterpret_cast<Address>(address);
  }

  void free_addresses(Address address, std::uint64_t bytes) const override {
    hip_->hipMemAddressFree(pointer_to(address), bytes);
  }

  Status map(Address address, std::uint64_t bytes, Handle handle) const override {
    return hip_->check(hip_->hipMemMap(pointer_to(address), bytes, 0, memory_of(handle), 0));
  }

  void unmap(Address address, std::uint64_t bytes) const override {
    hip_->hipMemUnmap(pointer_to(address), bytes);
  }

  Status allow_access(Address address, std::uint64_t bytes) const override {
    hipMemAccessDesc access{};
    access.location.type = hipMemLocationTypeDevice;
    access.location.id = ordinal_;
    access.flags = hipMemAccessFlagsProtReadWrite;
    return hip_->check(hip_->hipMemSetAccess(pointer_to(address), bytes, &access, 1));
  }

  Result<Address> allocate(std::uint64_t bytes) const override {
    void* address = nullptr;
    GCR_TRY(hip_->check(hip_->hipMalloc(&address, bytes)));
    return reinterpret_cast<Address>(address);
  }

  void free(Address address) const override { hip_->hipFree(pointer_to(address)); }

  Result<std::byte*> allocate_host(std::uint64_t bytes) const override {
    void* address = nullptr;
    GCR_TRY(hip_->check(hip_->hipHostMalloc(&address, bytes, hipHostMallocPortable)));
    return static_cast<std::byte*>(address);
  }

  void free_host(std::byte* address) const override { hip_->hipHostFree(address); }

  Status page_lock(std::span<std::byte> bytes) const override {
    return hip_->check(hip_->hipHostRegister(bytes.data(), bytes.size(), hipHostRegisterPortable));
  }

  void unlock_pages(std::byte* address) const override { hip_->hipHostUnregister(address); }

  /// Registered memory may have another address on the GPU.
  Result<Address> address_of(std::byte* host) const override {
    void* address = nullptr;
    GCR_TRY(hip_->check(hip_->hipHostGetDevicePointer(&address, host, 0)));
    return reinterpret_cast<Address>(address);
  }

  Result<StreamHandle> make_stream() const override {
    hipStream_t stream = nullptr;
    GCR_TRY(hip_->check(hip_->hipStreamCreateWithFlags(&stream, hipStreamNonBlocking)));
    return static_cast<StreamHandle>(stream);
  }

  void destroy_stream(StreamHandle stream) const override {
    hip_->hipStreamDestroy(static_cast<hipStream_t>(stream));
  }

  Status copy_within(Address to, Address from, std::uint64_t bytes,
                     StreamHandle stream) const override {
    return hip_->check(hip_->hipMemcpyDtoDAsync(pointer_to(to), pointer_to(from), bytes,
                                                static_cast<hipStream_t>(stream)));
  }

  Status copy_out(std::byte* to, Address from, std::uint64_t bytes,
                  StreamHandle stream) const override {
    return hip_->check(
        hip_->hipMemcpyDtoHAsync(to, pointer_to(from), bytes, static_cast<hipStream_t>(stream)));
  }

  // HIP takes what it only reads by a pointer to what is not const, up to release 6.
  Status copy_in(Address to, const std::byte* from, std::uint64_t bytes,
                 StreamHandle stream) const override {
    return hip_->check(hip_->hipMemcpyHtoDAsync(pointer_to(to), const_cast<std::byte*>(from), bytes,
                                                static_cast<hipStream_t>(stream)));
  }

  Status copy_in_now(Address to, std::span<const std::byte> from) const override {
    return hip_->check(
        hip_->hipMemcpyHtoD(pointer_to(to), const_cast<std::byte*>(from.data()), from.size()));
  }

  Status fill(Address to, std::byte value, std::uint64_t bytes,
              StreamHandle stream) const override {
    return hip_->check(hip_->hipMemsetD8Async(pointer_to(to), std::to_integer<unsigned char>(value),
                                              bytes, static_cast<hipStream_t>(stream)));
  }

  Status synchronize(StreamHandle stream) const override {
    return hip_->check(hip_->hipStreamSynchronize(static_cast<hipStream_t>(stream)));
  }

  Result<Kernel> load_digest_kernel() const override {
    GCR_ASSIGN(const char* const code, hip_->digest_code(ordinal_));
    hipModule_t module = nullptr;
    hipFunction_t function = nullptr;
    GCR_TRY(hip_->check(hip_->hipModuleLoadData(&module, code)));
    const Status found =
        hip_->check(hip_->hipModuleGetFunction(&function, module, digest::kDigestKernel));
    if (found) return Kernel{module, function};
    hip_->hipModuleUnload(module);
    return found.error();
  }

  void unload(const Kernel& kernel) const override {
    hip_->hipModuleUnload(static_cast<hipModule_t>(kernel.module));
  }

  Status launch(const Kernel& kernel, unsigned blocks, unsigned threads, std::span<void*> arguments,
                StreamHandle stream) const override {
    return hip_->check(hip_->hipModuleLaunchKernel(
        static_cast<hipFunction_t>(kernel.function), blocks, 1, 1, threads, 1, 1, 0,
        static_cast<hipStream_t>(stream), arguments.data(), nullptr));
  }

 private:
  static hipMemGenericAllocationHandle_t memory_of(Handle handle) {
    return reinterpret_cast<hipMemGenericAllocationHandle_t>(handle);
  }

  const std::shared_ptr<const Library> hip_;
  const int ordinal_;
};

}  // namespace

Result<std::shared_ptr<Gpu>> Library::open(const GpuInfo& info) const {
  auto calls = std::make_unique<HipCalls>(shared_from_this(), info.ordinal);
  GCR_TRY(calls->enter());
  return std::make_shared<Gpu>(info, std::move(calls));
}

}  // namespace gcr::device::hip
