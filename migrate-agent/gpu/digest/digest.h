// Keyed 128-bit digests of chunks: how a migration finds what has changed, and proves its copy.
//
// Construction. A chunk of n bytes, n <= 2 MiB, is cut into blocks of 1 KiB, the last one filled up
// with zeros; a block is 256 little-endian words m[0..255] of 32 bits.
//   Level 1, per block, for t = 0..3 (one key k[] of 268 random 32-bit words for all blocks):
//     N[t] = sum over i = 0..127 of
//              (m[2i] + k[2i+4t] mod 2^32) * (m[2i+1] + k[2i+1+4t] mod 2^32)      mod 2^64
//   Level 2, over the whole chunk (a key K[] of random numbers below p = 2^61 - 1):
//     x[0] = n, x[1+8b+2t] = low half of block b's N[t], x[2+8b+2t] = its high half,
//     H[s] = sum over j of x[j] * K[j+s]                                          mod p, s = 0, 1
//   The digest is H[0], then H[1], as 64-bit little-endian numbers.
//
// Bound. Two different chunks have the same digest with a probability below 2^-121.9 over the key,
// if they do not depend on the key:
//   - Level 1 is NH (Black, Halevi, Krawczyk, Krovetz, Rogaway: "UMAC: Fast and Secure Message
//     Authentication", CRYPTO '99; RFC 4418, L1-HASH) with four passes over one shifted (Toeplitz)
//     key. NH on 32-bit words sends two blocks to values with a given difference with probability
//     at most 2^-32. Take the last pair i in which the blocks differ: pass t uses two words of the
//     key for it which no earlier pass used for a pair up to i, and the pairs after it cancel out.
//     So the passes multiply: all four agree with probability at most 2^-128. (The same four passes
//     over blocks of 1 KiB: Crowley, Biggers: "Adiantum", IACR ToSC 2018.)
//   - Level 2 is an inner product in the field of p elements: two different vectors x meet with
//     probability 1/p per sum, for x[j] < 2^32 < p. K is shifted by one for the second sum, so by
//     the same argument (the last differing j, and K[j+1] which the first sum has not used) both
//     agree with probability 1/p^2. Chunks of different lengths differ in x[0].
//   - 2^-128 + p^-2 < 2^-121.9.
// A migration's key is fresh, and programs that write chunks do not know it. A store's key:
// decision 24.
//
// Which key words a byte is combined with depends on its place alone, so any number of threads can
// share a chunk: sums of level 1 mod 2^64 within a block, sums of level 2 mod p across blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/units.h"

namespace gcr::digest {

inline constexpr std::size_t kBlockBytes = 1024;
inline constexpr std::size_t kPasses = 4;
inline constexpr std::size_t kBlockKeyWords = kBlockBytes / 4 + 4 * (kPasses - 1);
inline constexpr std::size_t kSumKeyWords = 1 + kChunkBytes / kBlockBytes * 2 * kPasses + 1;
inline constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;

/// The digest of one chunk, as it is sent and compared.
struct Digest {
  std::array<std::uint8_t, 16> bytes{};
  bool operator==(const Digest&) const = default;
};
static_assert(sizeof(Digest) == 16);

/// The name of the kernel in digest_kernel.cu.
inline constexpr char kDigestKernel[] = "gcr_digest_chunks";

/// The key of one migration, expanded: 129 KiB. Immutable, so threads may share it.
class DigestKey {
 public:
  /// The same 32 bytes give the same key on every machine: k[] and then K[] are read from the
  /// AES-256-CTR stream under `secret` with a counter from zero, as little-endian words; K's words
  /// are cut to 61 bits, and skipped where they then equal p. Ends the process if OpenSSL cannot.
  static DigestKey expand(std::span<const std::byte, 32> secret);

  /// The digest of kChunkBytes of zeros.
  const Digest& zero_chunk() const { return zero_chunk_; }

  /// k[] of level 1, for a kernel on a GPU.
  std::span<const std::uint32_t, kBlockKeyWords> block_key() const { return block_key_; }

  /// K[] of level 2, each below p.
  std::span<const std::uint64_t, kSumKeyWords> sum_key() const {
    return std::span<const std::uint64_t, kSumKeyWords>(sum_key_.data(), kSumKeyWords);
  }

 private:
  DigestKey() = default;

  std::array<std::uint32_t, kBlockKeyWords> block_key_{};
  std::vector<std::uint64_t> sum_key_;
  Digest zero_chunk_;
};

/// The digest of `chunk`, of any length up to kChunkBytes and any alignment. Thread-safe. A longer
/// chunk is an error of the caller that ends the process.
Digest digest_chunk(const DigestKey& key, std::span<const std::byte> chunk);

/// The digest of `length_bytes` zeros, without reading any. Of a whole chunk the key knows it.
Digest digest_zeros(const DigestKey& key, std::size_t length_bytes = kChunkBytes);

}  // namespace gcr::digest
