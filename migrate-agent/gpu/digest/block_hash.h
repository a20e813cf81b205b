// The two levels of the digest (digest.h), for an expanded key: level 1 in two implementations that
// agree bit for bit. Depends on block_hash.cc alone, except digest_chunk_with().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "migrate-agent/gpu/digest/digest.h"

namespace gcr::digest {

using BlockHash = std::array<std::uint64_t, kPasses>;
using BlockHashFunction = BlockHash (*)(const std::byte* block,
                                        std::span<const std::uint32_t, kBlockKeyWords> key);

/// Hashes the kBlockBytes at `block`, of any alignment, on any machine.
BlockHash hash_block_portable(const std::byte* block,
                              std::span<const std::uint32_t, kBlockKeyWords> key);

/// Whether this processor can run hash_block_avx2.
bool have_avx2();

/// The same with AVX2; only where have_avx2().
BlockHash hash_block_avx2(const std::byte* block,
                          std::span<const std::uint32_t, kBlockKeyWords> key);

/// Level 2. 2^14 products below 2^93 fit a Wide, so one reduction at the end is enough.
class ChunkSums {
 public:
  ChunkSums(std::span<const std::uint64_t, kSumKeyWords> key, std::size_t length_bytes)
      : key_(key.data()),
        first_(Wide{length_bytes} * key_[0]),
        second_(Wide{length_bytes} * key_[1]) {
    ++key_;
  }

  void add(const BlockHash& block) {
    for (const std::uint64_t value : block) {
      const std::uint64_t low = value & 0xffffffff;
      const std::uint64_t high = value >> 32;
      first_ += Wide{low} * key_[0] + Wide{high} * key_[1];
      second_ += Wide{low} * key_[1] + Wide{high} * key_[2];
      key_ += 2;
    }
  }

  Digest digest() const {
    const std::array<std::uint64_t, 2> sums = {reduce(first_), reduce(second_)};
    Digest digest;
    std::memcpy(digest.bytes.data(), sums.data(), sizeof sums);
    return digest;
  }

 private:
  __extension__ using Wide = unsigned __int128;

  static std::uint64_t reduce(Wide sum) {
    const auto fold = [](Wide value) { return (value & kPrime) + (value >> 61); };
    const auto folded = static_cast<std::uint64_t>(fold(fold(fold(sum))));
    return folded == kPrime ? 0 : folded;
  }

  const std::uint64_t* key_;
  Wide first_;
  Wide second_;
};

/// The digest of `chunk`, at most kChunkBytes, under the two halves of a DigestKey.
inline Digest sum_chunk(BlockHashFunction hash_block,
                        std::span<const std::uint32_t, kBlockKeyWords> block_key,
                        std::span<const std::uint64_t, kSumKeyWords> sum_key,
                        std::span<const std::byte> chunk) {
  ChunkSums sums(sum_key, chunk.size());
  for (; chunk.size() >= kBlockBytes; chunk = chunk.subspan(kBlockBytes)) {
    sums.add(hash_block(chunk.data(), block_key));
  }
  if (!chunk.empty()) {
    std::array<std::byte, kBlockBytes> last{};
    std::memcpy(last.data(), chunk.data(), chunk.size());
    sums.add(hash_block(last.data(), block_key));
  }
  return sums.digest();
}

/// digest_chunk with a given implementation of level 1.
Digest digest_chunk_with(BlockHashFunction hash_block, const DigestKey& key,
                         std::span<const std::byte> chunk);

}  // namespace gcr::digest
