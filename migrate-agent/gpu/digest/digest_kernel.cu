// The digest of digest.h for chunks in VRAM: bit for bit what digest_chunk() gives.
//
// One thread block digests one chunk at a time. A warp takes four blocks of 1 KiB per step: each
// lane reads the same two places of every block, so it keeps its part of k[] in registers, and sums
// its products for 4 blocks x 4 passes. A butterfly adds these 16 sums across the warp so that two
// lanes end up with each N: lanes 2i and 2i + 1 with pass i % 4 of block i / 4, for H[0] and H[1].
// In each of its rounds a lane gives away the half of its sums that it does not need. So that this
// is the upper half in every lane, with nothing to choose, sum [slot][place] of a lane belongs to
// the block slot ^ (lane / 8) and the pass place ^ (lane / 2 % 4).
// As soon as a block is hashed, the read of the block in its place in the warp's next step starts.
//
// The compiler finds the header of its language in the folder cuda or hip next to this file. For
// CUDA the project uses digest_kernel.ptx, made from this file by scripts/make-ptx.
#include <cstdint>

#include "kernel_language.h"

namespace gcr::digest {

/// device::Chunk of migrate-agent/gpu/device/device.h.
struct Chunk {
  const std::uint8_t* bytes;
  std::uint32_t length_bytes;
  std::uint32_t reserved;
};

}  // namespace gcr::digest

namespace {

using namespace gcr::digest;

// As in digest.h, which device code cannot include.
constexpr unsigned kBlockBytes = 1024;
constexpr unsigned kPasses = 4;
constexpr unsigned kBlockKeyWords = 268;
constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / 32;
constexpr unsigned kStepBlocks = 4;
constexpr unsigned kStepBytes = kStepBlocks * kBlockBytes;
constexpr unsigned kPieceBytes = sizeof(Words);
constexpr unsigned kPieces = 2;  // of a block, per lane
static_assert(kPieces * 32 * kPieceBytes == kBlockBytes);

using Wide = unsigned __int128;

/// k[] of level 1 for the places in a block that this lane reads, in the order of its sums.
struct LaneKey {
  Words words[kPieces][kPasses];
};

/// What one lane reads of a block.
struct LaneData {
  Words words[kPieces];
};

GCR_DEVICE std::uint32_t mask_of(int bytes) {
  return bytes >= 4 ? 0xffffffff : bytes <= 0 ? 0 : (1U << 8 * bytes) - 1;
}

/// The piece at `offset` of a chunk that ends somewhere before, in or after it, with zeros there.
/// A piece that the chunk ends in is readable to its own end, because it does not cross a page.
GCR_DEVICE Words read_last_piece(const Chunk& chunk, unsigned offset) {
  const int bytes = static_cast<int>(chunk.length_bytes) - static_cast<int>(offset);
  if (bytes <= 0) return make_words(0, 0, 0, 0);
  const Words words = read_once(chunk.bytes + offset);
  return make_words(words.x & mask_of(bytes), words.y & mask_of(bytes - 4),
                    words.z & mask_of(bytes - 8), words.w & mask_of(bytes - 12));
}

/// Where this lane's first piece of block `slot` of a step lies in the step.
GCR_DEVICE unsigned place_of(unsigned slot, unsigned lane) {
  return (slot ^ lane / 8) * kBlockBytes + lane * kPieceBytes;
}

GCR_DEVICE LaneData read_block(const Chunk& chunk, unsigned offset) {
  const std::uint8_t* from = chunk.bytes + offset;
  return {{read_once(from), read_once(from + 32 * kPieceBytes)}};
}

GCR_DEVICE LaneData read_last_block(const Chunk& chunk, unsigned offset) {
  return {{read_last_piece(chunk, offset), read_last_piece(chunk, offset + 32 * kPieceBytes)}};
}

/// Gives the upper half of the sums to the lane `kAcross` away, and adds its upper half to the
/// lower.
template <unsigned kAcross, unsigned kSums>
GCR_DEVICE void halve(const std::uint64_t (&sums)[kSums], std::uint64_t* halved) {
#pragma unroll
  for (unsigned i = 0; i < kSums / 2; ++i) {
    halved[i] = sums[i] + exchange(sums[i + kSums / 2], kAcross);
  }
}

GCR_DEVICE std::uint64_t products(Words words, Words key) {
  return std::uint64_t{words.x + key.x} * (words.y + key.y) +
         std::uint64_t{words.z + key.z} * (words.w + key.w);
}

/// Level 1 of one block: pass lane / 2 % 4, summed over the 4 lanes that differ in nothing else.
GCR_DEVICE std::uint64_t hash_block(const LaneData& data, const LaneKey& key) {
  std::uint64_t sums[kPasses];
#pragma unroll
  for (unsigned pass = 0; pass < kPasses; ++pass) {
    sums[pass] =
        products(data.words[0], key.words[0][pass]) + products(data.words[1], key.words[1][pass]);
  }
  std::uint64_t pairs[2];
  std::uint64_t hash;
  halve<4>(sums, pairs);
  halve<2>(pairs, &hash);
  return hash;
}

/// Level 1: N[lane / 2 % 4] of block lane / 8, from what hash_block gave for each slot.
GCR_DEVICE std::uint64_t complete(const std::uint64_t (&blocks)[kStepBlocks]) {
  std::uint64_t pairs[2];
  std::uint64_t hash;
  halve<16>(blocks, pairs);
  halve<8>(pairs, &hash);
  return hash + exchange(hash, 1);
}

GCR_DEVICE std::uint64_t fold(std::uint64_t value) { return (value & kPrime) + (value >> 61); }

/// The number mod p, though p itself may stand for 0.
GCR_DEVICE std::uint64_t reduce(Wide sum) {
  const Wide once = (sum & kPrime) + (sum >> 61);
  return fold(static_cast<std::uint64_t>(once & kPrime) + static_cast<std::uint64_t>(once >> 61));
}

/// K[j] and K[j + 1], for the two halves of one N in one of the sums H.
struct Weights {
  std::uint64_t low;
  std::uint64_t high;
};

/// Those for H[lane % 2]; `sum_key` is K[] from 1 on.
GCR_DEVICE Weights weights_of(const std::uint64_t* sum_key, unsigned step, unsigned lane) {
  const std::uint64_t* from = sum_key + step * (2 * kPasses * kStepBlocks) + lane;
  return {read_constant(from), read_constant(from + 1)};
}

/// Level 2.
GCR_DEVICE Wide weigh(std::uint64_t hash, const Weights& weights) {
  return Wide{hash & 0xffffffff} * weights.low + Wide{hash >> 32} * weights.high;
}

/// This lane's part of H[lane % 2] for the whole steps that this warp takes.
GCR_DEVICE Wide sum_whole_steps(const Chunk& chunk, const LaneKey& key,
                                const std::uint64_t* sum_key, unsigned warp, unsigned lane) {
  const unsigned steps = chunk.length_bytes / kStepBytes;
  LaneData data[kStepBlocks];
  Wide sum = 0;
  if (warp < steps) {
#pragma unroll
    for (unsigned i = 0; i < kStepBlocks; ++i) {
      data[i] = read_block(chunk, warp * kStepBytes + place_of(i, lane));
    }
  }
  for (unsigned step = warp; step < steps; step += kWarps) {
    const Weights weights = weights_of(sum_key, step, lane);
    const unsigned next = step + kWarps;
    std::uint64_t hashes[kStepBlocks];
#pragma unroll
    for (unsigned i = 0; i < kStepBlocks; ++i) {
      hashes[i] = hash_block(data[i], key);
      if (next < steps) data[i] = read_block(chunk, next * kStepBytes + place_of(i, lane));
    }
    sum += weigh(complete(hashes), weights);
  }
  return sum;
}

/// The same for the step that the chunk ends in.
GCR_DEVICE Wide sum_last_step(const Chunk& chunk, const LaneKey& key, const std::uint64_t* sum_key,
                              unsigned step, unsigned lane) {
  std::uint64_t hashes[kStepBlocks];
#pragma unroll
  for (unsigned i = 0; i < kStepBlocks; ++i) {
    hashes[i] = hash_block(read_last_block(chunk, step * kStepBytes + place_of(i, lane)), key);
  }
  const std::uint64_t hash = complete(hashes);
  const unsigned block = step * kStepBlocks + lane / (2 * kPasses);
  return block * kBlockBytes < chunk.length_bytes ? weigh(hash, weights_of(sum_key, step, lane))
                                                  : 0;
}

GCR_DEVICE std::uint64_t sum_of_lane(const Chunk& chunk, const LaneKey& key,
                                     const std::uint64_t* sum_key, unsigned warp, unsigned lane) {
  Wide sum = sum_whole_steps(chunk, key, sum_key, warp, lane);
  const unsigned last = chunk.length_bytes / kStepBytes;
  if (last % kWarps == warp && chunk.length_bytes % kStepBytes != 0) {
    sum += sum_last_step(chunk, key, sum_key, last, lane);
  }
  return reduce(sum);
}

}  // namespace

/// `key` is k[], then K[]. Launched with kThreads threads and any number of thread blocks.
GCR_KERNEL(kThreads)
gcr_digest_chunks(const Chunk* chunks, unsigned count, const std::uint32_t* key,
                  std::uint64_t* digests) {
  GCR_SHARED Chunk next;
  GCR_SHARED std::uint64_t sums[2][kWarps];
  const unsigned lane = GCR_THREAD % 32;
  const unsigned warp = GCR_THREAD / 32;
  const auto* sum_key = reinterpret_cast<const std::uint64_t*>(key + kBlockKeyWords);
  LaneKey lane_key;
#pragma unroll
  for (unsigned i = 0; i < kPieces * kPasses; ++i) {
    lane_key.words[i / kPasses][i % kPasses] =
        reinterpret_cast<const Words*>(key)[i / kPasses * 32 + lane + (i % kPasses ^ lane / 2 % 4)];
  }
  if (GCR_THREAD == 0 && GCR_BLOCK < count) next = chunks[GCR_BLOCK];
  wait_for_block();
  for (unsigned i = GCR_BLOCK; i < count; i += GCR_BLOCKS) {
    const Chunk chunk = next;
    Chunk after{};
    // Descriptors may lie in host memory, far away: the next one is read together with this chunk.
    if (GCR_THREAD == 0 && i + GCR_BLOCKS < count) after = chunks[i + GCR_BLOCKS];
    std::uint64_t sum = sum_of_lane(chunk, lane_key, sum_key + 1, warp, lane);
#pragma unroll
    for (unsigned across = 16; across >= 2; across /= 2) sum = fold(sum + exchange(sum, across));
    if (lane < 2) sums[lane][warp] = sum;
    wait_for_block();
    if (GCR_THREAD == 0) next = after;
    if (GCR_THREAD < 2) {
      Wide total = Wide{chunk.length_bytes} * sum_key[GCR_THREAD];
      for (unsigned from = 0; from < kWarps; ++from) total += sums[GCR_THREAD][from];
      const std::uint64_t digest = reduce(total);
      digests[2 * i + GCR_THREAD] = digest == kPrime ? 0 : digest;
    }
    wait_for_block();
  }
}
