// The digest of digest.h for chunks in VRAM: bit for bit what digest_chunk() gives.
//
// One thread block digests one chunk at a time. A warp takes four blocks of 1 KiB per step: each
// lane reads the same two places of every block, so it keeps its part of k[] in registers, and sums
// its products for 4 blocks x 4 passes. A butterfly adds these 16 sums across the warp so that two
// lanes end up with each N; one of them works on H[0], the other on H[1].
//
// The project uses digest_kernel.ptx, made from this file by scripts/make-digest-ptx.
#include <cstdint>

namespace gcr::digest {

/// ChunkInVram of gpu_digest.h.
struct Chunk {
  const std::uint8_t* bytes;
  std::uint32_t length_bytes;
  std::uint32_t reserved;
};

}  // namespace gcr::digest

namespace {

using gcr::digest::Chunk;

// Those of digest.h, which device code cannot include.
constexpr unsigned kBlockBytes = 1024;
constexpr unsigned kPasses = 4;
constexpr unsigned kBlockKeyWords = 268;
constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;

constexpr unsigned kThreads = 512;
constexpr unsigned kWarps = kThreads / 32;
constexpr unsigned kAllLanes = 0xffffffff;
constexpr unsigned kStepBlocks = 4;
constexpr unsigned kStepBytes = kStepBlocks * kBlockBytes;
constexpr unsigned kSums = kStepBlocks * kPasses;
constexpr unsigned kPieceBytes = sizeof(uint4);
constexpr unsigned kPieces = kBlockBytes / (32 * kPieceBytes);  // of a block, per lane

using Wide = unsigned __int128;

/// k[] of level 1 for the places in a block that this lane reads.
struct LaneKey {
  uint4 words[kPieces][kPasses];
};

/// What one lane reads of four blocks.
struct LaneData {
  uint4 words[kStepBlocks][kPieces];
};

/// 16 bytes that are read once: they need no place in the first-level cache.
__device__ uint4 read_piece(const std::uint8_t* from) {
  uint4 words;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from));
  return words;
}

__device__ std::uint32_t mask_of(int bytes) {
  return bytes >= 4 ? 0xffffffff : bytes <= 0 ? 0 : (1U << 8 * bytes) - 1;
}

/// The piece at `offset` of a chunk that ends somewhere before, in or after it, with zeros there.
/// A piece that the chunk ends in is readable to its own end, because it does not cross a page.
__device__ uint4 read_last_piece(const Chunk& chunk, unsigned offset) {
  const int bytes = static_cast<int>(chunk.length_bytes) - static_cast<int>(offset);
  if (bytes <= 0) return make_uint4(0, 0, 0, 0);
  const uint4 words = read_piece(chunk.bytes + offset);
  return make_uint4(words.x & mask_of(bytes), words.y & mask_of(bytes - 4),
                    words.z & mask_of(bytes - 8), words.w & mask_of(bytes - 12));
}

template <bool kWhole>
__device__ LaneData read_step(const Chunk& chunk, unsigned step, unsigned lane) {
  LaneData data;
#pragma unroll
  for (unsigned block = 0; block < kStepBlocks; ++block) {
#pragma unroll
    for (unsigned piece = 0; piece < kPieces; ++piece) {
      const unsigned offset =
          step * kStepBytes + block * kBlockBytes + (piece * 32 + lane) * kPieceBytes;
      data.words[block][piece] =
          kWhole ? read_piece(chunk.bytes + offset) : read_last_piece(chunk, offset);
    }
  }
  return data;
}

__device__ std::uint64_t products(uint4 words, uint4 key) {
  return std::uint64_t{words.x + key.x} * (words.y + key.y) +
         std::uint64_t{words.z + key.z} * (words.w + key.w);
}

/// Gives one half of the first 2 * kKept sums to the lane across, and takes its share of the other.
template <unsigned kKept>
__device__ void halve(std::uint64_t (&sums)[kSums], unsigned lane) {
  const bool upper = (lane & (2 * kKept)) != 0;
#pragma unroll
  for (unsigned i = 0; i < kKept; ++i) {
    const std::uint64_t given = upper ? sums[i] : sums[i + kKept];
    const std::uint64_t own = upper ? sums[i + kKept] : sums[i];
    sums[i] = own + __shfl_xor_sync(kAllLanes, given, 2 * kKept);
  }
}

/// Level 1: returns N[t] of block b, for 4 * b + t = lane / 2.
__device__ std::uint64_t hash_blocks(const LaneData& data, const LaneKey& key, unsigned lane) {
  std::uint64_t sums[kSums] = {};
#pragma unroll
  for (unsigned i = 0; i < kSums; ++i) {
#pragma unroll
    for (unsigned piece = 0; piece < kPieces; ++piece) {
      sums[i] += products(data.words[i / kPasses][piece], key.words[piece][i % kPasses]);
    }
  }
  halve<8>(sums, lane);
  halve<4>(sums, lane);
  halve<2>(sums, lane);
  halve<1>(sums, lane);
  return sums[0] + __shfl_xor_sync(kAllLanes, sums[0], 1);
}

__device__ std::uint64_t fold(std::uint64_t value) { return (value & kPrime) + (value >> 61); }

/// The number mod p, though p itself may stand for 0.
__device__ std::uint64_t reduce(Wide sum) {
  const Wide once = (sum & kPrime) + (sum >> 61);
  return fold(static_cast<std::uint64_t>(once & kPrime) + static_cast<std::uint64_t>(once >> 61));
}

/// Level 2: the products of one N for H[lane % 2]; `sum_key` is K[] from 1 on.
__device__ Wide weigh(std::uint64_t hash, const std::uint64_t* sum_key, unsigned step,
                      unsigned lane) {
  const std::uint64_t* weights = sum_key + step * (2 * kSums) + lane;
  return Wide{hash & 0xffffffff} * __ldg(weights) + Wide{hash >> 32} * __ldg(weights + 1);
}

/// This lane's part of H[lane % 2].
__device__ std::uint64_t sum_of_lane(const Chunk& chunk, const LaneKey& key,
                                     const std::uint64_t* sum_key, unsigned warp, unsigned lane) {
  const unsigned whole_steps = chunk.length_bytes / kStepBytes;
  Wide sum = 0;
  unsigned step = warp;
  for (; step < whole_steps; step += kWarps) {
    const LaneData data = read_step<true>(chunk, step, lane);
    sum += weigh(hash_blocks(data, key, lane), sum_key, step, lane);
  }
  if (step * kStepBytes < chunk.length_bytes) {
    const std::uint64_t hash = hash_blocks(read_step<false>(chunk, step, lane), key, lane);
    const unsigned block = step * kStepBlocks + lane / (2 * kPasses);
    if (block * kBlockBytes < chunk.length_bytes) sum += weigh(hash, sum_key, step, lane);
  }
  return reduce(sum);
}

}  // namespace

/// `key` is k[], then K[]. Launched with kThreads threads and any number of thread blocks.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    gcr_digest_chunks(const Chunk* chunks, unsigned count, const std::uint32_t* key,
                      std::uint64_t* digests) {
  __shared__ Chunk next;
  __shared__ std::uint64_t sums[2][kWarps];
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  const auto* sum_key = reinterpret_cast<const std::uint64_t*>(key + kBlockKeyWords);
  LaneKey lane_key;
#pragma unroll
  for (unsigned i = 0; i < kPieces * kPasses; ++i) {
    lane_key.words[i / kPasses][i % kPasses] =
        reinterpret_cast<const uint4*>(key)[i / kPasses * 32 + lane + i % kPasses];
  }
  if (threadIdx.x == 0 && blockIdx.x < count) next = chunks[blockIdx.x];
  __syncthreads();
  for (unsigned i = blockIdx.x; i < count; i += gridDim.x) {
    const Chunk chunk = next;
    Chunk after{};
    // Descriptors may lie in host memory, far away: this one travels while the chunk is read.
    if (threadIdx.x == 0 && i + gridDim.x < count) after = chunks[i + gridDim.x];
    std::uint64_t sum = sum_of_lane(chunk, lane_key, sum_key + 1, warp, lane);
#pragma unroll
    for (unsigned across = 16; across >= 2; across /= 2) {
      sum = fold(sum + __shfl_xor_sync(kAllLanes, sum, across));
    }
    if (lane < 2) sums[lane][warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) next = after;
    if (threadIdx.x < 2) {
      Wide total = Wide{chunk.length_bytes} * sum_key[threadIdx.x];
      for (unsigned from = 0; from < kWarps; ++from) total += sums[threadIdx.x][from];
      const std::uint64_t digest = reduce(total);
      digests[2 * i + threadIdx.x] = digest == kPrime ? 0 : digest;
    }
    __syncthreads();
  }
}
