#include "tests/gpu/digest/on_cpu/kernel.h"

#include "migrate-agent/gpu/digest/digest_kernel.cu"

namespace gcr::digest::on_cpu {

void digest_chunks(unsigned blocks, const KernelChunk* chunks, unsigned count,
                   const std::uint32_t* key, std::uint64_t* digests) {
  std::vector<Chunk> given;
  for (unsigned i = 0; i < count; ++i) {
    given.push_back(
        {reinterpret_cast<const std::uint8_t*>(chunks[i].bytes), chunks[i].length_bytes, 0});
  }
  launch(blocks, kThreads, [&] { gcr_digest_chunks(given.data(), count, key, digests); });
}

}  // namespace gcr::digest::on_cpu
