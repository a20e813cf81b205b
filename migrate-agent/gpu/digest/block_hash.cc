#include "migrate-agent/gpu/digest/block_hash.h"

#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gcr::digest {

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

BlockHash hash_block_portable(const std::byte* block,
                              std::span<const std::uint32_t, kBlockKeyWords> key) {
  BlockHash sums{};
  for (std::size_t i = 0; i < kBlockBytes / 4; i += 2) {
    std::array<std::uint32_t, 2> words;
    std::memcpy(words.data(), block + 4 * i, sizeof words);
    for (std::size_t pass = 0; pass < kPasses; ++pass) {
      const std::uint32_t left = words[0] + key[i + 4 * pass];
      const std::uint32_t right = words[1] + key[i + 1 + 4 * pass];
      sums[pass] += std::uint64_t{left} * right;
    }
  }
  return sums;
}

#if defined(__x86_64__)

namespace {

using Words = __m256i;  // 8 words of 32 bits, or 4 sums of 64

__attribute__((target("avx2"))) inline Words load(const void* from) {
  return _mm256_loadu_si256(static_cast<const Words*>(from));
}

/// Adds to each of 4 sums the product of one pair of words under their keys.
__attribute__((target("avx2"))) inline Words add_products(Words sums, Words words, Words key) {
  const Words keyed = _mm256_add_epi32(words, key);
  return _mm256_add_epi64(sums, _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32)));
}

__attribute__((target("avx2"))) inline std::uint64_t total(Words sums) {
  const __m128i pairs =
      _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  return static_cast<std::uint64_t>(_mm_extract_epi64(pairs, 0)) +
         static_cast<std::uint64_t>(_mm_extract_epi64(pairs, 1));
}

}  // namespace

bool have_avx2() { return __builtin_cpu_supports("avx2") != 0; }

__attribute__((target("avx2"))) BlockHash hash_block_avx2(
    const std::byte* block, std::span<const std::uint32_t, kBlockKeyWords> key) {
  Words sums[kPasses] = {};
  // Pass t + 2 of these 8 words uses the key that pass t uses for the next 8.
  Words key0 = load(key.data());
  Words key1 = load(key.data() + 4);
  for (std::size_t i = 0; i < kBlockBytes / 4; i += 8) {
    const Words words = load(block + 4 * i);
    const Words key2 = load(key.data() + i + 8);
    const Words key3 = load(key.data() + i + 12);
    sums[0] = add_products(sums[0], words, key0);
    sums[1] = add_products(sums[1], words, key1);
    sums[2] = add_products(sums[2], words, key2);
    sums[3] = add_products(sums[3], words, key3);
    key0 = key2;
    key1 = key3;
  }
  return {total(sums[0]), total(sums[1]), total(sums[2]), total(sums[3])};
}

#else

bool have_avx2() { return false; }

BlockHash hash_block_avx2(const std::byte* block,
                          std::span<const std::uint32_t, kBlockKeyWords> key) {
  return hash_block_portable(block, key);
}

#endif

}  // namespace gcr::digest
