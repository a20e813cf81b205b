#include "migrate-agent/device/cuda/objects.h"

#include <fmt/format.h>

#include "src/base/units.h"

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

class CudaAllocation final : public Allocation {
 public:
  CudaAllocation(std::shared_ptr<CudaGpu> gpu, std::uint64_t size_bytes)
      : Allocation(std::move(gpu), size_bytes) {}
  ~CudaAllocation() override {
    if (!gpu().enter()) return;
    if (mapped_) library().cuMemUnmap(address_, size_bytes_);
    if (address_ != 0) library().cuMemAddressFree(address_, size_bytes_);
    if (handle_ != 0) library().cuMemRelease(handle_);
  }

  Status create(std::optional<std::uint32_t> host_node);
  Status import(UniqueFd descriptor);

 private:
  CudaGpu& gpu() const { return static_cast<CudaGpu&>(*gpu_); }
  const Library& library() const { return gpu().library(); }
  Status map();

  CUmemGenericAllocationHandle handle_ = 0;
  bool mapped_ = false;
};

Status CudaAllocation::create(std::optional<std::uint32_t> host_node) {
  const GpuInfo& info = gpu().info();
  const CUmemAllocationProp properties = properties_on(info.ordinal, host_node);
  const CUresult created = library().cuMemCreate(&handle_, size_bytes_, &properties, 0);
  if (created != CUDA_SUCCESS && host_node) {
    return library().check(created, fmt::format("cannot create {} of host memory on NUMA node {}",
                                                format_bytes(size_bytes_), *host_node));
  }
  if (created != CUDA_SUCCESS) {
    const auto free = gpu().free_bytes();
    return library().check(created, fmt::format("cannot create {} of VRAM on GPU-{} ({} free)",
                                                format_bytes(size_bytes_), info.uuid.to_string(),
                                                free ? format_bytes(*free) : "unknown"));
  }
  int descriptor = -1;
  GCR_TRY(library().check(library().cuMemExportToShareableHandle(
                              &descriptor, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                          "cannot export VRAM"));
  descriptor_.reset(descriptor);
  return map();
}

Status CudaAllocation::import(UniqueFd descriptor) {
  descriptor_ = std::move(descriptor);
  // The driver takes the descriptor in the place of a pointer.
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  void* os_handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor_.get()));
  GCR_TRY(library().check(library().cuMemImportFromShareableHandle(
                              &handle_, os_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                          fmt::format("cannot import {} of VRAM", format_bytes(size_bytes_))));
  return map();
}

Status CudaAllocation::map() {
  const std::string doing = fmt::format("cannot map {} of VRAM", format_bytes(size_bytes_));
  CUdeviceptr address = 0;
  GCR_TRY(library().check(library().cuMemAddressReserve(&address, size_bytes_, 0, 0, 0), doing));
  address_ = address;
  GCR_TRY(library().check(library().cuMemMap(address_, size_bytes_, 0, handle_, 0), doing));
  mapped_ = true;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = gpu().info().ordinal;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return library().check(library().cuMemSetAccess(address_, size_bytes_, &access, 1), doing);
}

class CudaScratch final : public Scratch {
 public:
  CudaScratch(std::shared_ptr<CudaGpu> gpu, Address address)
      : Scratch(address), gpu_(std::move(gpu)) {}
  ~CudaScratch() override {
    if (gpu_->enter()) gpu_->library().cuMemFree_v2(address_);
  }

 private:
  const std::shared_ptr<CudaGpu> gpu_;
};

class CudaHostMemory final : public HostMemory {
 public:
  CudaHostMemory(std::shared_ptr<CudaGpu> gpu, std::span<std::byte> bytes, bool ours)
      : HostMemory(bytes), gpu_(std::move(gpu)), ours_(ours) {}
  ~CudaHostMemory() override {
    if (!gpu_->enter()) return;
    if (ours_) {
      gpu_->library().cuMemFreeHost(bytes_.data());
    } else {
      gpu_->library().cuMemHostUnregister(bytes_.data());
    }
  }

 private:
  const std::shared_ptr<CudaGpu> gpu_;
  const bool ours_;
};

}  // namespace

Result<std::shared_ptr<Gpu>> Library::open(const GpuInfo& info) const {
  CUdevice device = 0;
  CUcontext context = nullptr;
  const std::string doing = fmt::format("cannot create a context on GPU-{}", info.uuid.to_string());
  GCR_TRY(check(cuDeviceGet(&device, info.ordinal), doing));
  GCR_TRY(check(cuDevicePrimaryCtxRetain(&context, device), doing));
  return std::make_shared<CudaGpu>(shared_from_this(), info, context);
}

CudaGpu::~CudaGpu() {
  CUdevice device = 0;
  if (library_->cuDeviceGet(&device, info().ordinal) == CUDA_SUCCESS) {
    library_->cuDevicePrimaryCtxRelease_v2(device);
  }
}

Status CudaGpu::enter() const {
  return library_->check(library_->cuCtxSetCurrent(context_), "cannot enter the agent's context");
}

Result<std::uint64_t> CudaGpu::free_bytes() {
  GCR_TRY(enter());
  std::size_t free = 0;
  std::size_t total = 0;
  GCR_TRY(library_->check(library_->cuMemGetInfo_v2(&free, &total), "cannot read free VRAM"));
  return static_cast<std::uint64_t>(free);
}

Result<std::unique_ptr<Allocation>> CudaGpu::create(std::uint64_t size_bytes,
                                                    std::optional<std::uint32_t> host_node) {
  GCR_TRY(enter());
  auto made = std::make_unique<CudaAllocation>(self(), size_bytes);
  GCR_TRY(made->create(host_node));
  return made;
}

Result<std::unique_ptr<Allocation>> CudaGpu::import(UniqueFd descriptor, std::uint64_t size_bytes) {
  GCR_TRY(enter());
  auto made = std::make_unique<CudaAllocation>(self(), size_bytes);
  GCR_TRY(made->import(std::move(descriptor)));
  return made;
}

Result<std::unique_ptr<Scratch>> CudaGpu::scratch(std::uint64_t size_bytes) {
  GCR_TRY(enter());
  CUdeviceptr address = 0;
  GCR_TRY(library_->check(
      library_->cuMemAlloc_v2(&address, size_bytes),
      fmt::format("cannot allocate {} of VRAM for the mover", format_bytes(size_bytes))));
  return std::make_unique<CudaScratch>(self(), address);
}

Result<std::unique_ptr<HostMemory>> CudaGpu::pinned(std::uint64_t size_bytes) {
  GCR_TRY(enter());
  void* address = nullptr;
  GCR_TRY(library_->check(
      library_->cuMemHostAlloc(&address, size_bytes, CU_MEMHOSTALLOC_PORTABLE),
      fmt::format("cannot allocate {} of page-locked memory", format_bytes(size_bytes))));
  const std::span bytes(static_cast<std::byte*>(address), size_bytes);
  return std::make_unique<CudaHostMemory>(self(), bytes, true);
}

Result<std::unique_ptr<HostMemory>> CudaGpu::page_lock(std::span<std::byte> bytes) {
  GCR_TRY(enter());
  GCR_TRY(library_->check(
      library_->cuMemHostRegister_v2(bytes.data(), bytes.size(), CU_MEMHOSTREGISTER_PORTABLE),
      fmt::format("cannot page-lock {} of the landing region", format_bytes(bytes.size()))));
  return std::make_unique<CudaHostMemory>(self(), bytes, false);
}

Result<std::unique_ptr<Stream>> CudaGpu::stream() {
  GCR_TRY(enter());
  CUstream stream = nullptr;
  GCR_TRY(library_->check(library_->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
                          "cannot create a stream"));
  return std::make_unique<CudaStream>(self(), stream);
}

CudaStream::~CudaStream() {
  if (gpu_->enter()) gpu_->library().cuStreamDestroy_v2(stream_);
}

Status CudaStream::copy_within(Address to, Address from, std::uint64_t bytes) {
  GCR_TRY(gpu_->enter());
  return gpu_->library().check(gpu_->library().cuMemcpyDtoDAsync_v2(to, from, bytes, stream_),
                               "copying within VRAM");
}

Status CudaStream::copy_out(std::byte* to, Address from, std::uint64_t bytes) {
  GCR_TRY(gpu_->enter());
  return gpu_->library().check(gpu_->library().cuMemcpyDtoHAsync_v2(to, from, bytes, stream_),
                               "copying out of VRAM");
}

Status CudaStream::copy_in(Address to, const std::byte* from, std::uint64_t bytes) {
  GCR_TRY(gpu_->enter());
  return gpu_->library().check(gpu_->library().cuMemcpyHtoDAsync_v2(to, from, bytes, stream_),
                               "copying into VRAM");
}

Status CudaStream::fill(Address to, std::byte value, std::uint64_t bytes) {
  GCR_TRY(gpu_->enter());
  const auto number = std::to_integer<unsigned char>(value);
  return gpu_->library().check(gpu_->library().cuMemsetD8Async(to, number, bytes, stream_),
                               "filling VRAM");
}

Status CudaStream::synchronize() {
  GCR_TRY(gpu_->enter());
  return gpu_->library().check(gpu_->library().cuStreamSynchronize(stream_),
                               "a copy between VRAM and host memory failed");
}

}  // namespace gcr::device::cuda
