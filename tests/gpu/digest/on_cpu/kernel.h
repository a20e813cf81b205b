// digest_kernel.cu, run on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gcr::digest::on_cpu {

/// The layout that the kernel takes.
struct KernelChunk {
  const std::byte* bytes;
  std::uint32_t length_bytes;
};

/// Digests chunks[i], readable up to the next multiple of 16 bytes, into digests[2 * i] and
/// digests[2 * i + 1], with `blocks` thread blocks. `key` is k[], then K[]; 16-byte aligned.
void digest_chunks(unsigned blocks, const KernelChunk* chunks, unsigned count,
                   const std::uint32_t* key, std::uint64_t* digests);

}  // namespace gcr::digest::on_cpu
