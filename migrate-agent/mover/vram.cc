#include "migrate-agent/mover/vram.h"

#include <fcntl.h>
#include <fmt/format.h>

#include "src/base/units.h"

namespace gcr::mover {
namespace {

CUmemAllocationProp properties_on(int ordinal) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal;
  return properties;
}

}  // namespace

Result<std::shared_ptr<GpuContext>> GpuContext::create(std::shared_ptr<const CudaDriver> driver,
                                                       const GpuInfo& gpu) {
  std::shared_ptr<GpuContext> context(new GpuContext(std::move(driver), gpu));
  CUdevice device = 0;
  const std::string doing = fmt::format("cannot create a context on GPU-{}", gpu.uuid.to_string());
  GCR_TRY(context->driver_->check(context->driver_->cuDeviceGet(&device, gpu.ordinal), doing));
  GCR_TRY(context->driver_->check(
      context->driver_->cuDevicePrimaryCtxRetain(&context->context_, device), doing));
  return context;
}

GpuContext::~GpuContext() {
  if (context_ == nullptr) return;
  CUdevice device = 0;
  if (driver_->cuDeviceGet(&device, gpu_.ordinal) == CUDA_SUCCESS) {
    driver_->cuDevicePrimaryCtxRelease_v2(device);
  }
}

Status GpuContext::enter() const {
  return driver_->check(driver_->cuCtxSetCurrent(context_), "cannot enter the mover's context");
}

Result<std::uint64_t> GpuContext::free_bytes() const {
  GCR_TRY(enter());
  std::size_t free = 0;
  std::size_t total = 0;
  GCR_TRY(driver_->check(driver_->cuMemGetInfo_v2(&free, &total), "cannot read free VRAM"));
  return static_cast<std::uint64_t>(free);
}

Result<Vram> Vram::import(std::shared_ptr<GpuContext> context, UniqueFd descriptor,
                          std::uint64_t size_bytes) {
  GCR_TRY(context->enter());
  Vram vram(std::move(context), size_bytes);
  vram.descriptor_ = std::move(descriptor);
  const CudaDriver& driver = vram.context_->driver();
  // The driver takes the descriptor as a pointer argument.
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  void* os_handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(vram.descriptor_.get()));
  GCR_TRY(driver.check(driver.cuMemImportFromShareableHandle(
                           &vram.handle_, os_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                       fmt::format("cannot import {} of VRAM", format_bytes(size_bytes))));
  GCR_TRY(vram.map());
  return vram;
}

Result<Vram> Vram::create(std::shared_ptr<GpuContext> context, std::uint64_t size_bytes) {
  GCR_TRY(context->enter());
  Vram vram(std::move(context), size_bytes);
  const CudaDriver& driver = vram.context_->driver();
  const GpuInfo& gpu = vram.context_->gpu();
  const CUmemAllocationProp properties = properties_on(gpu.ordinal);
  const CUresult created = driver.cuMemCreate(&vram.handle_, size_bytes, &properties, 0);
  if (created != CUDA_SUCCESS) {
    const auto free = vram.context_->free_bytes();
    return Error(driver
                     .check(created, fmt::format("cannot create {} of VRAM on GPU-{} ({} free)",
                                                 format_bytes(size_bytes), gpu.uuid.to_string(),
                                                 free ? format_bytes(*free) : "unknown"))
                     .error());
  }
  int descriptor = -1;
  GCR_TRY(driver.check(driver.cuMemExportToShareableHandle(
                           &descriptor, vram.handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                       "cannot export VRAM"));
  vram.descriptor_.reset(descriptor);
  GCR_TRY(vram.map());
  return vram;
}

Status Vram::map() {
  const CudaDriver& driver = context_->driver();
  const std::string doing = fmt::format("cannot map {} of VRAM", format_bytes(size_bytes_));
  GCR_TRY(driver.check(driver.cuMemAddressReserve(&address_, size_bytes_, 0, 0, 0), doing));
  GCR_TRY(driver.check(driver.cuMemMap(address_, size_bytes_, 0, handle_, 0), doing));
  mapped_ = true;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = context_->gpu().ordinal;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return driver.check(driver.cuMemSetAccess(address_, size_bytes_, &access, 1), doing);
}

Vram::Vram(Vram&& other) noexcept
    : context_(std::move(other.context_)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      descriptor_(std::move(other.descriptor_)),
      handle_(std::exchange(other.handle_, 0)),
      address_(std::exchange(other.address_, 0)),
      mapped_(std::exchange(other.mapped_, false)) {}

Vram& Vram::operator=(Vram&& other) noexcept {
  if (this == &other) return *this;
  destroy();
  context_ = std::move(other.context_);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  descriptor_ = std::move(other.descriptor_);
  handle_ = std::exchange(other.handle_, 0);
  address_ = std::exchange(other.address_, 0);
  mapped_ = std::exchange(other.mapped_, false);
  return *this;
}

Vram::~Vram() { destroy(); }

void Vram::destroy() {
  if (context_ == nullptr || !context_->enter()) return;
  const CudaDriver& driver = context_->driver();
  if (mapped_) driver.cuMemUnmap(address_, size_bytes_);
  if (address_ != 0) driver.cuMemAddressFree(address_, size_bytes_);
  if (handle_ != 0) driver.cuMemRelease(handle_);
  mapped_ = false;
  address_ = 0;
  handle_ = 0;
}

Result<UniqueFd> Vram::duplicate_descriptor() const {
  UniqueFd copy(::fcntl(descriptor_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return Error::from_errno(errno, "cannot duplicate the descriptor of a buffer");
  return copy;
}

Result<Stream> Stream::create(std::shared_ptr<GpuContext> context) {
  GCR_TRY(context->enter());
  CUstream stream = nullptr;
  GCR_TRY(context->driver().check(context->driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
                                  "cannot create a stream"));
  return Stream(std::move(context), stream);
}

Stream::~Stream() {
  if (context_ != nullptr && context_->enter()) context_->driver().cuStreamDestroy_v2(stream_);
}

Status Stream::synchronize() const {
  GCR_TRY(context_->enter());
  return context_->driver().check(context_->driver().cuStreamSynchronize(stream_),
                                  "a copy between VRAM and host memory failed");
}

Result<DeviceMemory> DeviceMemory::create(std::shared_ptr<GpuContext> context,
                                          std::size_t size_bytes) {
  GCR_TRY(context->enter());
  CUdeviceptr address = 0;
  GCR_TRY(context->driver().check(
      context->driver().cuMemAlloc_v2(&address, size_bytes),
      fmt::format("cannot allocate {} of VRAM for the mover", format_bytes(size_bytes))));
  return DeviceMemory(std::move(context), address);
}

DeviceMemory::~DeviceMemory() {
  if (context_ != nullptr && context_->enter()) context_->driver().cuMemFree_v2(address_);
}

Result<PinnedBuffer> PinnedBuffer::create(std::shared_ptr<GpuContext> context,
                                          std::size_t size_bytes) {
  GCR_TRY(context->enter());
  void* address = nullptr;
  GCR_TRY(context->driver().check(
      context->driver().cuMemHostAlloc(&address, size_bytes, CU_MEMHOSTALLOC_PORTABLE),
      fmt::format("cannot allocate {} of page-locked memory", format_bytes(size_bytes))));
  return PinnedBuffer(std::move(context), {static_cast<std::byte*>(address), size_bytes});
}

PinnedBuffer::~PinnedBuffer() {
  if (context_ != nullptr && context_->enter()) context_->driver().cuMemFreeHost(bytes_.data());
}

Result<RegisteredMemory> RegisteredMemory::create(std::shared_ptr<GpuContext> context,
                                                  std::span<std::byte> bytes) {
  GCR_TRY(context->enter());
  GCR_TRY(context->driver().check(
      context->driver().cuMemHostRegister_v2(bytes.data(), bytes.size(),
                                             CU_MEMHOSTREGISTER_PORTABLE),
      fmt::format("cannot page-lock {} of the landing region", format_bytes(bytes.size()))));
  return RegisteredMemory(std::move(context), bytes);
}

RegisteredMemory::~RegisteredMemory() {
  if (context_ != nullptr && context_->enter()) {
    context_->driver().cuMemHostUnregister(bytes_.data());
  }
}

}  // namespace gcr::mover
