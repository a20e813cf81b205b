// The digest of digest.h computed in VRAM: a kernel that reads VRAM once, at memory speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "migrate-agent/digest/digest.h"
#include "migrate-agent/mover/vram.h"

namespace gcr::mover {

/// One chunk in VRAM as the kernel reads it: 16-byte aligned, of any length up to kChunkBytes.
/// Memory is read up to the next multiple of 16 bytes; bytes behind the chunk's end are
/// ignored.
struct ChunkInVram {
  CUdeviceptr address = 0;
  std::uint32_t length_bytes = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(ChunkInVram) == 16);

/// Digests chunks in VRAM on one GPU. The expanded key lives in its VRAM while the object lives.
/// Thread-safe; move-only. Destroy it after everything that it enqueued has completed.
class GpuDigester {
 public:
  /// Compiles the kernel for this GPU and copies the key to it. The object keeps no reference to
  /// `key`. kResourceExhausted without 130 KiB of VRAM.
  static Result<GpuDigester> create(std::shared_ptr<GpuContext> context,
                                    const digest::DigestKey& key);

  GpuDigester(GpuDigester&& other) noexcept;
  GpuDigester& operator=(GpuDigester&&) = delete;
  ~GpuDigester();

  /// Enqueues on `stream` (of the same context) one launch that puts the digest of chunks[i], equal
  /// to digest_chunk() of its bytes, into digests[i]. Makes the context current in the calling
  /// thread. Both arrays lie in VRAM or in page-locked host memory, 16-byte aligned, and are the
  /// caller's to keep untouched until the stream has passed. Nothing is enqueued for a count of 0
  /// or after a failure. Bad addresses or lengths are an error of the caller that the stream shows.
  Status enqueue(const ChunkInVram* chunks, std::size_t count, digest::Digest* digests,
                 CUstream stream) const;

 private:
  GpuDigester(std::shared_ptr<GpuContext> context, DeviceMemory key)
      : context_(std::move(context)), key_(std::move(key)) {}
  Status load_kernel();

  std::shared_ptr<GpuContext> context_;
  DeviceMemory key_;  // k[], then K[]
  CUmodule module_ = nullptr;
  CUfunction kernel_ = nullptr;
  unsigned max_blocks_ = 0;  // as many as the GPU can run at the same time
};

}  // namespace gcr::mover
