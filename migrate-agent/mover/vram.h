// VRAM as the mover holds it: physical allocations, mapped in the mover's own context, owned
// through descriptors that outlive any one process (design decision 1).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "migrate-agent/mover/cuda_driver.h"
#include "src/base/unique_fd.h"

namespace gcr::mover {

/// The primary context of one GPU, retained while this object lives. Any thread may enter it.
class GpuContext {
 public:
  static Result<std::shared_ptr<GpuContext>> create(std::shared_ptr<const CudaDriver> driver,
                                                    const GpuInfo& gpu);
  ~GpuContext();
  GpuContext(const GpuContext&) = delete;
  GpuContext& operator=(const GpuContext&) = delete;

  /// Makes the context current in the calling thread.
  Status enter() const;

  /// Free VRAM now, in bytes.
  Result<std::uint64_t> free_bytes() const;

  const CudaDriver& driver() const { return *driver_; }
  const GpuInfo& gpu() const { return gpu_; }

 private:
  GpuContext(std::shared_ptr<const CudaDriver> driver, GpuInfo gpu)
      : driver_(std::move(driver)), gpu_(std::move(gpu)) {}

  std::shared_ptr<const CudaDriver> driver_;
  GpuInfo gpu_;
  CUcontext context_ = nullptr;
};

/// One physical allocation, mapped for reading and writing in the mover, with the descriptor that
/// names it. Move-only; destroying it unmaps, releases and closes, from any thread.
class Vram {
 public:
  /// Maps the allocation of `descriptor` (an application's export). The descriptor is kept: an
  /// imported allocation cannot be exported again, and a roll-back hands it back.
  static Result<Vram> import(std::shared_ptr<GpuContext> context, UniqueFd descriptor,
                             std::uint64_t size_bytes);

  /// Creates `size_bytes` (a multiple of 2 MiB) of VRAM. kResourceExhausted says how much is free.
  static Result<Vram> create(std::shared_ptr<GpuContext> context, std::uint64_t size_bytes);

  Vram(Vram&& other) noexcept;
  Vram& operator=(Vram&& other) noexcept;
  ~Vram();

  CUdeviceptr address() const { return address_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  const GpuContext& context() const { return *context_; }
  const std::shared_ptr<GpuContext>& shared_context() const { return context_; }

  /// A new descriptor of the same allocation, for the caller.
  Result<UniqueFd> duplicate_descriptor() const;

 private:
  Vram(std::shared_ptr<GpuContext> context, std::uint64_t size_bytes)
      : context_(std::move(context)), size_bytes_(size_bytes) {}
  Status map();
  void destroy();

  std::shared_ptr<GpuContext> context_;
  std::uint64_t size_bytes_ = 0;
  UniqueFd descriptor_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  bool mapped_ = false;
};

/// A stream of one context. Move-only.
class Stream {
 public:
  static Result<Stream> create(std::shared_ptr<GpuContext> context);
  Stream(Stream&& other) noexcept
      : context_(std::move(other.context_)), stream_(std::exchange(other.stream_, nullptr)) {}
  ~Stream();

  CUstream get() const { return stream_; }
  Status synchronize() const;

 private:
  Stream(std::shared_ptr<GpuContext> context, CUstream stream)
      : context_(std::move(context)), stream_(stream) {}
  std::shared_ptr<GpuContext> context_;
  CUstream stream_;
};

/// The mover's own VRAM, for copies and tables. Move-only.
class DeviceMemory {
 public:
  /// kResourceExhausted if that much is not free.
  static Result<DeviceMemory> create(std::shared_ptr<GpuContext> context, std::size_t size_bytes);
  DeviceMemory(DeviceMemory&& other) noexcept
      : context_(std::move(other.context_)), address_(std::exchange(other.address_, 0)) {}
  ~DeviceMemory();
  CUdeviceptr address() const { return address_; }

 private:
  DeviceMemory(std::shared_ptr<GpuContext> context, CUdeviceptr address)
      : context_(std::move(context)), address_(address) {}
  std::shared_ptr<GpuContext> context_;
  CUdeviceptr address_;
};

/// Page-locked host memory for staging, usable from every context. Move-only.
class PinnedBuffer {
 public:
  static Result<PinnedBuffer> create(std::shared_ptr<GpuContext> context, std::size_t size_bytes);
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : context_(std::move(other.context_)), bytes_(std::exchange(other.bytes_, {})) {}
  ~PinnedBuffer();
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  PinnedBuffer(std::shared_ptr<GpuContext> context, std::span<std::byte> bytes)
      : context_(std::move(context)), bytes_(bytes) {}
  std::shared_ptr<GpuContext> context_;
  std::span<std::byte> bytes_;
};

/// Host memory that is not owned (the landing region), page-locked while this object lives.
class RegisteredMemory {
 public:
  static Result<RegisteredMemory> create(std::shared_ptr<GpuContext> context,
                                         std::span<std::byte> bytes);
  RegisteredMemory(RegisteredMemory&& other) noexcept
      : context_(std::move(other.context_)), bytes_(std::exchange(other.bytes_, {})) {}
  ~RegisteredMemory();

 private:
  RegisteredMemory(std::shared_ptr<GpuContext> context, std::span<std::byte> bytes)
      : context_(std::move(context)), bytes_(bytes) {}
  std::shared_ptr<GpuContext> context_;
  std::span<std::byte> bytes_;
};

}  // namespace gcr::mover
