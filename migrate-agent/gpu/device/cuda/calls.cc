// A GPU through the CUDA driver: everything is in its primary context, which this object holds.
#include "migrate-agent/gpu/device/calls.h"

#include <fmt/format.h>

#include <memory>

#include "migrate-agent/gpu/device/cuda/library.h"
#include "migrate-agent/gpu/digest/digest_kernel_ptx.h"

namespace gcr::device::cuda {
namespace {

CUmemAllocationProp properties_on(int ordinal, std::optional<std::uint32_t> host_node) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal;
  if (host_node) {
    properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    properties.location.id = static_cast<int>(*host_node);
  }
  return properties;
}

class CudaCalls final : public Calls {
 public:
  /// Takes over one reference to the GPU's primary context.
  CudaCalls(std::shared_ptr<const Library> library, int ordinal, CUdevice device, CUcontext context)
      : driver_(std::move(library)), ordinal_(ordinal), device_(device), context_(context) {}
  ~CudaCalls() override { driver_->cuDevicePrimaryCtxRelease_v2(device_); }
  CudaCalls(const CudaCalls&) = delete;
  CudaCalls& operator=(const CudaCalls&) = delete;

  Status enter() const override {
    return driver_->check(driver_->cuCtxSetCurrent(context_), "cannot enter the agent's context");
  }

  Result<std::uint64_t> free_bytes() const override {
    std::size_t free = 0;
    std::size_t total = 0;
    GCR_TRY(driver_->check(driver_->cuMemGetInfo_v2(&free, &total)));
    return static_cast<std::uint64_t>(free);
  }

  Result<unsigned> processors() const override {
    int processors = 0;
    GCR_TRY(driver_->check(driver_->cuDeviceGetAttribute(
        &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_)));
    return static_cast<unsigned>(processors);
  }

  Result<Handle> create_memory(std::uint64_t bytes,
                               std::optional<std::uint32_t> host_node) const override {
    const CUmemAllocationProp properties = properties_on(ordinal_, host_node);
    CUmemGenericAllocationHandle handle = 0;
    GCR_TRY(driver_->check(driver_->cuMemCreate(&handle, bytes, &properties, 0)));
    return Handle{handle};
  }

  Result<UniqueFd> export_memory(Handle handle) const override {
    int descriptor = -1;
    GCR_TRY(driver_->check(driver_->cuMemExportToShareableHandle(
        &descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)));
    return UniqueFd(descriptor);
  }

  Result<Handle> import_memory(int descriptor) const override {
    // The driver takes the descriptor itself, as the value of the pointer.
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    void* os_handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor));
    CUmemGenericAllocationHandle handle = 0;
    GCR_TRY(driver_->check(driver_->cuMemImportFromShareableHandle(
        &handle, os_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)));
    return Handle{handle};
  }

  void release_memory(Handle handle) const override { driver_->cuMemRelease(handle); }

  Result<Address> reserve(std::uint64_t bytes) const override {
    CUdeviceptr address = 0;
    GCR_TRY(driver_->check(driver_->cuMemAddressReserve(&address, bytes, 0, 0, 0)));
    return Address{address};
  }

  void free_addresses(Address address, std::uint64_t bytes) const override {
    driver_->cuMemAddressFree(address, bytes);
  }

  Status map(Address address, std::uint64_t bytes, Handle handle) const override {
    return driver_->check(driver_->cuMemMap(address, bytes, 0, handle, 0));
  }

  void unmap(Address address, std::uint64_t bytes) const override {
    driver_->cuMemUnmap(address, bytes);
  }

  Status allow_access(Address address, std::uint64_t bytes) const override {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = ordinal_;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return driver_->check(driver_->cuMemSetAccess(address, bytes, &access, 1));
  }

  Result<Address> allocate(std::uint64_t bytes) const override {
    CUdeviceptr address = 0;
    GCR_TRY(driver_->check(driver_->cuMemAlloc_v2(&address, bytes)));
    return Address{address};
  }

  void free(Address address) const override { driver_->cuMemFree_v2(address); }

  Result<std::byte*> allocate_host(std::uint64_t bytes) const override {
    void* address = nullptr;
    GCR_TRY(driver_->check(driver_->cuMemHostAlloc(&address, bytes, CU_MEMHOSTALLOC_PORTABLE)));
    return static_cast<std::byte*>(address);
  }

  void free_host(std::byte* address) const override { driver_->cuMemFreeHost(address); }

  Status page_lock(std::span<std::byte> bytes) const override {
    return driver_->check(
        driver_->cuMemHostRegister_v2(bytes.data(), bytes.size(), CU_MEMHOSTREGISTER_PORTABLE));
  }

  void unlock_pages(std::byte* address) const override { driver_->cuMemHostUnregister(address); }

  /// Host and GPUs use the same address: addresses are unified in every 64-bit process on Linux
  /// (CUDA C++ Programming Guide, "Unified Virtual Address Space").
  Result<Address> address_of(std::byte* host) const override {
    return reinterpret_cast<Address>(host);
  }

  Result<StreamHandle> make_stream() const override {
    CUstream stream = nullptr;
    GCR_TRY(driver_->check(driver_->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)));
    return static_cast<StreamHandle>(stream);
  }

  void destroy_stream(StreamHandle stream) const override {
    driver_->cuStreamDestroy_v2(static_cast<CUstream>(stream));
  }

  Status copy_within(Address to, Address from, std::uint64_t bytes,
                     StreamHandle stream) const override {
    return driver_->check(
        driver_->cuMemcpyDtoDAsync_v2(to, from, bytes, static_cast<CUstream>(stream)));
  }

  Status copy_out(std::byte* to, Address from, std::uint64_t bytes,
                  StreamHandle stream) const override {
    return driver_->check(
        driver_->cuMemcpyDtoHAsync_v2(to, from, bytes, static_cast<CUstream>(stream)));
  }

  Status copy_in(Address to, const std::byte* from, std::uint64_t bytes,
                 StreamHandle stream) const override {
    return driver_->check(
        driver_->cuMemcpyHtoDAsync_v2(to, from, bytes, static_cast<CUstream>(stream)));
  }

  Status copy_in_now(Address to, std::span<const std::byte> from) const override {
    return driver_->check(driver_->cuMemcpyHtoD_v2(to, from.data(), from.size()));
  }

  Status fill(Address to, std::byte value, std::uint64_t bytes,
              StreamHandle stream) const override {
    return driver_->check(driver_->cuMemsetD8Async(to, std::to_integer<unsigned char>(value), bytes,
                                                   static_cast<CUstream>(stream)));
  }

  Status synchronize(StreamHandle stream) const override {
    return driver_->check(driver_->cuStreamSynchronize(static_cast<CUstream>(stream)));
  }

  Result<Kernel> load_digest_kernel() const override {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    GCR_TRY(driver_->check(driver_->cuModuleLoadData(&module, digest::kDigestKernelPtx)));
    const Status found =
        driver_->check(driver_->cuModuleGetFunction(&function, module, digest::kDigestKernel));
    if (found) return Kernel{module, function};
    driver_->cuModuleUnload(module);
    return found.error();
  }

  void unload(const Kernel& kernel) const override {
    driver_->cuModuleUnload(static_cast<CUmodule>(kernel.module));
  }

  Status launch(const Kernel& kernel, unsigned blocks, unsigned threads, std::span<void*> arguments,
                StreamHandle stream) const override {
    return driver_->check(
        driver_->cuLaunchKernel(static_cast<CUfunction>(kernel.function), blocks, 1, 1, threads, 1,
                                1, 0, static_cast<CUstream>(stream), arguments.data(), nullptr));
  }

 private:
  const std::shared_ptr<const Library> driver_;
  const int ordinal_;
  const CUdevice device_;
  const CUcontext context_;
};

}  // namespace

Result<std::shared_ptr<Gpu>> Library::open(const GpuInfo& info) const {
  CUdevice device = 0;
  CUcontext context = nullptr;
  const std::string doing = fmt::format("cannot create a context on {}", gpu_name(info.uuid));
  GCR_TRY(check(cuDeviceGet(&device, info.ordinal), doing));
  GCR_TRY(check(cuDevicePrimaryCtxRetain(&context, device), doing));
  return std::make_shared<Gpu>(
      info, std::make_unique<CudaCalls>(shared_from_this(), info.ordinal, device, context));
}

}  // namespace gcr::device::cuda
