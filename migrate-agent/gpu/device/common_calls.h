// What CUDA's driver and HIP have in common: functions that differ only in names and types, and the
// calls of calls.h that are made of them.
//
// `Library` is a class with the types and constants that this file uses, a pointer to each of the
// common functions, check(), and imports_by_value().
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "migrate-agent/gpu/device/calls.h"

// clang-format off
/// X(NAME, CUDA's symbol, HIP's symbol, parameters). HIP takes what it only reads by a pointer to
/// what is not const, up to release 6.
#define GCR_COMMON_FUNCTIONS(X)                                                                    \
  X(init, cuInit, hipInit, (unsigned))                                                             \
  X(driver_version, cuDriverGetVersion, hipRuntimeGetVersion, (int*))                              \
  X(device_count, cuDeviceGetCount, hipGetDeviceCount, (int*))                                     \
  X(device_get, cuDeviceGet, hipDeviceGet, (Device*, int))                                         \
  X(device_name, cuDeviceGetName, hipDeviceGetName, (char*, int, Device))                          \
  X(device_uuid, cuDeviceGetUuid_v2, hipDeviceGetUuid, (DeviceUuid*, Device))                      \
  X(device_memory, cuDeviceTotalMem_v2, hipDeviceTotalMem, (size_t*, Device))                      \
  X(device_attribute, cuDeviceGetAttribute, hipDeviceGetAttribute, (int*, Attribute, Device))      \
  X(memory_info, cuMemGetInfo_v2, hipMemGetInfo, (size_t*, size_t*))                               \
  X(allocate, cuMemAlloc_v2, hipMalloc, (Pointer*, size_t))                                        \
  X(free, cuMemFree_v2, hipFree, (Pointer))                                                        \
  X(create_memory, cuMemCreate, hipMemCreate, (Memory*, size_t, const MemoryProperties*, unsigned long long)) \
  X(release_memory, cuMemRelease, hipMemRelease, (Memory))                                         \
  X(export_memory, cuMemExportToShareableHandle, hipMemExportToShareableHandle, (void*, Memory, HandleType, unsigned long long)) \
  X(import_memory, cuMemImportFromShareableHandle, hipMemImportFromShareableHandle, (Memory*, void*, HandleType)) \
  X(reserve, cuMemAddressReserve, hipMemAddressReserve, (Pointer*, size_t, size_t, Pointer, unsigned long long)) \
  X(free_addresses, cuMemAddressFree, hipMemAddressFree, (Pointer, size_t))                        \
  X(map, cuMemMap, hipMemMap, (Pointer, size_t, size_t, Memory, unsigned long long))               \
  X(unmap, cuMemUnmap, hipMemUnmap, (Pointer, size_t))                                             \
  X(set_access, cuMemSetAccess, hipMemSetAccess, (Pointer, size_t, const Access*, size_t))         \
  X(copy_out, cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync, (void*, Pointer, size_t, Stream))          \
  X(copy_in, cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync, (Pointer, const void*, size_t, Stream))     \
  X(copy_within, cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync, (Pointer, Pointer, size_t, Stream))     \
  X(copy_in_now, cuMemcpyHtoD_v2, hipMemcpyHtoD, (Pointer, const void*, size_t))                   \
  X(fill, cuMemsetD8Async, hipMemsetD8Async, (Pointer, unsigned char, size_t, Stream))             \
  X(load_module, cuModuleLoadData, hipModuleLoadData, (Module*, const void*))                      \
  X(unload_module, cuModuleUnload, hipModuleUnload, (Module))                                      \
  X(find_function, cuModuleGetFunction, hipModuleGetFunction, (Function*, Module, const char*))    \
  X(launch, cuLaunchKernel, hipModuleLaunchKernel, (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**, void**)) \
  X(create_stream, cuStreamCreate, hipStreamCreateWithFlags, (Stream*, unsigned))                  \
  X(destroy_stream, cuStreamDestroy_v2, hipStreamDestroy, (Stream))                                \
  X(synchronize, cuStreamSynchronize, hipStreamSynchronize, (Stream))                              \
  X(allocate_host, cuMemHostAlloc, hipHostMalloc, (void**, size_t, unsigned))                      \
  X(free_host, cuMemFreeHost, hipHostFree, (void*))                                                \
  X(page_lock, cuMemHostRegister_v2, hipHostRegister, (void*, size_t, unsigned))                   \
  X(unlock_pages, cuMemHostUnregister, hipHostUnregister, (void*))
// clang-format on

namespace gcr::device {

/// All GPUs, without what one vendor alone has.
template <class Library>
Result<std::vector<GpuInfo>> list_gpus(const Library& library, Vendor vendor, int version) {
  std::vector<GpuInfo> gpus;
  int count = 0;
  GCR_TRY(library.check(library.device_count(&count), "cannot count the GPUs"));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const std::string doing = fmt::format("cannot query GPU {}", ordinal);
    typename Library::Device device = 0;
    std::array<char, 128> name{};
    typename Library::DeviceUuid given{};
    std::size_t total = 0;
    int mode = 0;
    GCR_TRY(library.check(library.device_get(&device, ordinal), doing));
    GCR_TRY(library.check(
        library.device_name(name.data(), static_cast<int>(name.size()) - 1, device), doing));
    GCR_TRY(library.check(library.device_uuid(&given, device), doing));
    GCR_TRY(library.check(library.device_memory(&total, device), doing));
    GCR_TRY(library.check(library.device_attribute(&mode, Library::kComputeMode, device), doing));
    Uuid uuid;
    static_assert(sizeof(given.bytes) == sizeof(uuid.bytes));
    std::memcpy(uuid.bytes.data(), given.bytes, sizeof(given.bytes));
    gpus.push_back({.vendor = vendor,
                    .driver_version = version,
                    .ordinal = ordinal,
                    .uuid = uuid,
                    .name = name.data(),
                    .total_bytes = total,
                    .compute_mode = static_cast<std::uint32_t>(mode)});
  }
  return gpus;
}

/// The calls that are the same for both. A vendor's class adds enter(), address_of() and
/// load_digest_kernel().
template <class Library>
class CommonCalls : public Calls {
 public:
  using Pointer = typename Library::Pointer;
  using Memory = typename Library::Memory;
  using Stream = typename Library::Stream;

  /// `device` is the driver's name for the GPU `ordinal`.
  CommonCalls(std::shared_ptr<const Library> library, int ordinal, typename Library::Device device)
      : driver_(std::move(library)), ordinal_(ordinal), device_(device) {}

  Result<std::uint64_t> free_bytes() const override {
    std::size_t free = 0;
    std::size_t total = 0;
    GCR_TRY(check(driver_->memory_info(&free, &total)));
    return static_cast<std::uint64_t>(free);
  }

  Result<unsigned> processors() const override {
    int processors = 0;
    GCR_TRY(check(driver_->device_attribute(&processors, Library::kProcessors, device_)));
    return static_cast<unsigned>(processors);
  }

  Result<Handle> create_memory(std::uint64_t bytes,
                               std::optional<std::uint32_t> host_node) const override {
    typename Library::MemoryProperties properties{};
    properties.type = Library::kPinned;
    properties.requestedHandleTypes = Library::kDescriptor;
    properties.location.type = Library::kOnDevice;
    properties.location.id = ordinal_;
    if (host_node) GCR_TRY(Library::place_on_host(properties, *host_node));
    Memory handle{};
    GCR_TRY(check(driver_->create_memory(&handle, bytes, &properties, 0)));
    return as<Handle>(handle);
  }

  Result<UniqueFd> export_memory(Handle handle) const override {
    int descriptor = -1;
    GCR_TRY(
        check(driver_->export_memory(&descriptor, as<Memory>(handle), Library::kDescriptor, 0)));
    return UniqueFd(descriptor);
  }

  Result<Handle> import_memory(int descriptor) const override {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    void* const value = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor));
    Memory handle{};
    GCR_TRY(check(driver_->import_memory(&handle, driver_->imports_by_value() ? value : &descriptor,
                                         Library::kDescriptor)));
    return as<Handle>(handle);
  }

  void release_memory(Handle handle) const override { driver_->release_memory(as<Memory>(handle)); }

  Result<Address> reserve(std::uint64_t bytes) const override {
    Pointer address{};
    GCR_TRY(check(driver_->reserve(&address, bytes, 0, Pointer{}, 0)));
    return as<Address>(address);
  }

  void free_addresses(Address address, std::uint64_t bytes) const override {
    driver_->free_addresses(as<Pointer>(address), bytes);
  }

  Status map(Address address, std::uint64_t bytes, Handle handle) const override {
    return check(driver_->map(as<Pointer>(address), bytes, 0, as<Memory>(handle), 0));
  }

  void unmap(Address address, std::uint64_t bytes) const override {
    driver_->unmap(as<Pointer>(address), bytes);
  }

  Status allow_access(Address address, std::uint64_t bytes) const override {
    typename Library::Access access{};
    access.location.type = Library::kOnDevice;
    access.location.id = ordinal_;
    access.flags = Library::kReadWrite;
    return check(driver_->set_access(as<Pointer>(address), bytes, &access, 1));
  }

  Result<Address> allocate(std::uint64_t bytes) const override {
    Pointer address{};
    GCR_TRY(check(driver_->allocate(&address, bytes)));
    return as<Address>(address);
  }

  void free(Address address) const override { driver_->free(as<Pointer>(address)); }

  Result<std::byte*> allocate_host(std::uint64_t bytes) const override {
    void* address = nullptr;
    GCR_TRY(check(driver_->allocate_host(&address, bytes, Library::kAllocatedForAll)));
    return static_cast<std::byte*>(address);
  }

  void free_host(std::byte* address) const override { driver_->free_host(address); }

  Status page_lock(std::span<std::byte> bytes) const override {
    return check(driver_->page_lock(bytes.data(), bytes.size(), Library::kLockedForAll));
  }

  void unlock_pages(std::byte* address) const override { driver_->unlock_pages(address); }

  Result<StreamHandle> make_stream() const override {
    Stream stream = nullptr;
    GCR_TRY(check(driver_->create_stream(&stream, Library::kNonBlocking)));
    return static_cast<StreamHandle>(stream);
  }

  void destroy_stream(StreamHandle stream) const override {
    driver_->destroy_stream(as<Stream>(stream));
  }

  Status copy_within(Address to, Address from, std::uint64_t bytes,
                     StreamHandle stream) const override {
    return check(
        driver_->copy_within(as<Pointer>(to), as<Pointer>(from), bytes, as<Stream>(stream)));
  }

  Status copy_out(std::byte* to, Address from, std::uint64_t bytes,
                  StreamHandle stream) const override {
    return check(driver_->copy_out(to, as<Pointer>(from), bytes, as<Stream>(stream)));
  }

  Status copy_in(Address to, const std::byte* from, std::uint64_t bytes,
                 StreamHandle stream) const override {
    return check(driver_->copy_in(as<Pointer>(to), from, bytes, as<Stream>(stream)));
  }

  Status copy_in_now(Address to, std::span<const std::byte> from) const override {
    return check(driver_->copy_in_now(as<Pointer>(to), from.data(), from.size()));
  }

  Status fill(Address to, std::byte value, std::uint64_t bytes,
              StreamHandle stream) const override {
    return check(driver_->fill(as<Pointer>(to), std::to_integer<unsigned char>(value), bytes,
                               as<Stream>(stream)));
  }

  Status synchronize(StreamHandle stream) const override {
    return check(driver_->synchronize(as<Stream>(stream)));
  }

  void unload(const Kernel& kernel) const override {
    driver_->unload_module(static_cast<typename Library::Module>(kernel.module));
  }

  Status launch(const Kernel& kernel, unsigned blocks, unsigned threads, std::span<void*> arguments,
                StreamHandle stream) const override {
    return check(driver_->launch(static_cast<typename Library::Function>(kernel.function), blocks,
                                 1, 1, threads, 1, 1, 0, as<Stream>(stream), arguments.data(),
                                 nullptr));
  }

 protected:
  Status check(auto result) const { return driver_->check(result); }

  Result<Kernel> load_kernel(const char* code) const {
    typename Library::Module module = nullptr;
    typename Library::Function function = nullptr;
    GCR_TRY(check(driver_->load_module(&module, code)));
    const Status found = check(driver_->find_function(&function, module, digest::kDigestKernel));
    if (found) return Kernel{module, function};
    driver_->unload_module(module);
    return found.error();
  }

  /// Addresses and handles are integers in CUDA and pointers in HIP.
  template <class To, class From>
  static To as(From number) {
    if constexpr (std::is_pointer_v<To> || std::is_pointer_v<From>) {
      return reinterpret_cast<To>(number);  // NOLINT(performance-no-int-to-ptr)
    } else {
      return number;
    }
  }

  const std::shared_ptr<const Library> driver_;
  const int ordinal_;
  const typename Library::Device device_;
};

}  // namespace gcr::device
