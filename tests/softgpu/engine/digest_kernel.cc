#include "tests/softgpu/engine/digest_kernel.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <thread>

#include "migrate-agent/gpu/digest/block_hash.h"
#include "tests/softgpu/engine/memory.h"

namespace gcr::softgpu {
namespace {

constexpr std::uint32_t kChunksPerThread = 8;  // fewer are not worth a thread

struct Chunk {
  std::uint64_t address;
  std::uint32_t length_bytes;
  std::uint32_t reserved;
};

/// The kernel's arguments, checked.
struct Arguments {
  explicit Arguments(const Launch& launch)
      : count(launch.argument<std::uint32_t>(8)),
        chunks(reinterpret_cast<const Chunk*>(
            launch.readable(launch.argument<std::uint64_t>(0), std::uint64_t{count} * 2))),
        key(reinterpret_cast<const std::uint32_t*>(
            launch.readable(launch.argument<std::uint64_t>(16), kKeyWords))),
        digests(reinterpret_cast<digest::Digest*>(
            launch.writable(launch.argument<std::uint64_t>(24), std::uint64_t{count} * 2))) {}

  bool valid() const { return chunks != nullptr && key != nullptr && digests != nullptr; }

  static constexpr std::size_t kKeyWords = digest::kBlockKeyWords / 2 + digest::kSumKeyWords;
  static_assert(digest::kBlockKeyWords % 2 == 0);
  std::uint32_t count;
  const Chunk* chunks;
  const std::uint32_t* key;
  digest::Digest* digests;
};

bool digest_chunk(const Launch& launch, const Arguments& arguments, std::uint32_t i) {
  static const digest::BlockHashFunction kHashBlock =
      digest::have_avx2() ? digest::hash_block_avx2 : digest::hash_block_portable;
  const Chunk chunk = arguments.chunks[i];
  if (chunk.address % 16 != 0 || chunk.length_bytes > kChunkBytes ||
      !launch.memory->accessible(chunk.address, chunk.length_bytes, PROT_READ)) {
    return false;
  }
  const std::span<const std::uint32_t, digest::kBlockKeyWords> block_key(arguments.key,
                                                                         digest::kBlockKeyWords);
  const std::span<const std::uint64_t, digest::kSumKeyWords> sum_key(
      reinterpret_cast<const std::uint64_t*>(block_key.data() + block_key.size()),
      digest::kSumKeyWords);
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  const auto* bytes = reinterpret_cast<const std::byte*>(chunk.address);
  arguments.digests[i] =
      digest::sum_chunk(kHashBlock, block_key, sum_key, {bytes, chunk.length_bytes});
  return true;
}

}  // namespace

Result digest_chunks(const Launch& launch) {
  const Arguments arguments(launch);
  if (!arguments.valid()) return Result::kIllegalAddress;
  std::atomic<std::uint32_t> next = 0;
  std::atomic<bool> faulty = false;
  const auto work = [&] {
    for (std::uint32_t i = next++; i < arguments.count && !faulty; i = next++) {
      if (!digest_chunk(launch, arguments, i)) faulty = true;
    }
  };
  {
    std::vector<std::jthread> helpers(std::min(std::max(std::thread::hardware_concurrency(), 1U),
                                               1 + arguments.count / kChunksPerThread) -
                                      1);
    for (std::jthread& helper : helpers) helper = std::jthread(work);
    work();
  }
  return faulty ? Result::kIllegalAddress : Result::kSuccess;
}

}  // namespace gcr::softgpu
