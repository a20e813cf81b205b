// The digest of digest.h by a kernel of ours.
#pragma once

#include <memory>

#include "migrate-agent/device/cuda/objects.h"

namespace gcr::device::cuda {

class CudaDigester final : public Digester {
 public:
  /// Compiles the kernel for this GPU and copies the key to it.
  static Result<std::unique_ptr<Digester>> create(std::shared_ptr<CudaGpu> gpu,
                                                  const digest::DigestKey& key);
  ~CudaDigester() override;
  CudaDigester(const CudaDigester&) = delete;
  CudaDigester& operator=(const CudaDigester&) = delete;

  Status enqueue(const Chunk* chunks, std::size_t count, digest::Digest* digests,
                 Stream& stream) const override;

 private:
  CudaDigester(std::shared_ptr<CudaGpu> gpu, std::unique_ptr<Scratch> key)
      : gpu_(std::move(gpu)), key_(std::move(key)) {}
  Status load_kernel();
  Status copy_key(const digest::DigestKey& key);

  const std::shared_ptr<CudaGpu> gpu_;
  const std::unique_ptr<Scratch> key_;  ///< k[], then K[]
  CUmodule module_ = nullptr;
  CUfunction kernel_ = nullptr;
  unsigned max_blocks_ = 0;  ///< as many as the GPU can run at the same time
};

}  // namespace gcr::device::cuda
