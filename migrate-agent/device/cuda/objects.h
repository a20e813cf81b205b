// A GPU by the CUDA driver, and what is made on it: all in the GPU's primary context, which lives
// as long as any of these.
#pragma once

#include <memory>

#include "migrate-agent/device/cuda/library.h"

namespace gcr::device::cuda {

class CudaGpu final : public Gpu {
 public:
  /// Takes over one reference to the GPU's primary context.
  CudaGpu(std::shared_ptr<const Library> library, const GpuInfo& info, CUcontext context)
      : Gpu(info), library_(std::move(library)), context_(context) {}
  ~CudaGpu() override;

  Result<std::uint64_t> free_bytes() override;
  Result<std::unique_ptr<Allocation>> create(std::uint64_t size_bytes,
                                             std::optional<std::uint32_t> host_node) override;
  Result<std::unique_ptr<Allocation>> import(UniqueFd descriptor,
                                             std::uint64_t size_bytes) override;
  Result<std::unique_ptr<Scratch>> scratch(std::uint64_t size_bytes) override;
  Result<std::unique_ptr<HostMemory>> pinned(std::uint64_t size_bytes) override;
  Result<std::unique_ptr<HostMemory>> page_lock(std::span<std::byte> bytes) override;
  Result<std::unique_ptr<Stream>> stream() override;
  Result<std::unique_ptr<Digester>> digester(const digest::DigestKey& key) override;

  /// Makes the context current in the calling thread.
  Status enter() const;

  const Library& library() const { return *library_; }

 private:
  std::shared_ptr<CudaGpu> self() { return std::static_pointer_cast<CudaGpu>(shared_from_this()); }

  const std::shared_ptr<const Library> library_;
  const CUcontext context_;
};

class CudaStream final : public Stream {
 public:
  CudaStream(std::shared_ptr<CudaGpu> gpu, CUstream stream)
      : gpu_(std::move(gpu)), stream_(stream) {}
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  Status copy_within(Address to, Address from, std::uint64_t bytes) override;
  Status copy_out(std::byte* to, Address from, std::uint64_t bytes) override;
  Status copy_in(Address to, const std::byte* from, std::uint64_t bytes) override;
  Status fill(Address to, std::byte value, std::uint64_t bytes) override;
  Status synchronize() override;

  CUstream get() const { return stream_; }

 private:
  const std::shared_ptr<CudaGpu> gpu_;
  const CUstream stream_;
};

}  // namespace gcr::device::cuda
