// The digest: vectors from an independent computation of its definition, agreement of all
// implementations, and sensitivity to every bit of chunk, length and key.
#include "migrate-agent/gpu/digest/digest.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "migrate-agent/gpu/digest/block_hash.h"

namespace gcr::digest {
namespace {

using Bytes = std::vector<std::byte>;

DigestKey key_of(std::uint8_t first) {
  std::array<std::byte, 32> secret;
  for (std::size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<std::byte>(first + i);
  return DigestKey::expand(secret);
}

/// Bytes of a formula that the independent computation of the vectors used too.
Bytes pattern(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(i * 7 + (i >> 8) * 13 + 1);
  }
  return bytes;
}

Bytes random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

std::string hex(const Digest& digest) {
  std::string text;
  for (const std::uint8_t byte : digest.bytes) text += fmt::format("{:02x}", byte);
  return text;
}

/// The fastest implementation that this processor can run.
BlockHashFunction fastest() { return have_avx2() ? hash_block_avx2 : hash_block_portable; }

// Computed with Python's integers and the openssl command from the definition in digest.h.
TEST(DigestVectors, KeyExpandsToTheDefinedStream) {
  const DigestKey key = key_of(0);
  EXPECT_EQ(key.block_key().front(), 3053490418U);
  EXPECT_EQ(key.block_key().back(), 3297809339U);
  EXPECT_EQ(key.sum_key().front(), 649752148514555816U);
  EXPECT_EQ(key.sum_key().back(), 1146812530605956081U);
  EXPECT_TRUE(std::all_of(key.sum_key().begin(), key.sum_key().end(),
                          [](std::uint64_t word) { return word < kPrime; }));
}

struct Vector {
  std::size_t size;
  const char* digest;
};

class DigestVectorTest : public testing::TestWithParam<Vector> {};

TEST_P(DigestVectorTest, DigestIsTheDefinedOne) {
  EXPECT_EQ(hex(digest_chunk(key_of(0), pattern(GetParam().size))), GetParam().digest);
}

INSTANTIATE_TEST_SUITE_P(DigestVectors, DigestVectorTest,
                         testing::Values(Vector{0, "00000000000000000000000000000000"},
                                         Vector{1, "061eda0494f26e0b5904d90bfa4d7001"},
                                         Vector{1023, "18900b628bc6c61f073547a4f492cd1e"},
                                         Vector{1024, "fef3d7df12d54104b009b5f49bac6415"},
                                         Vector{1025, "2948820d788c180f5c91f1c1457cf419"},
                                         Vector{4096, "0665b948e47c4f051e06bb0e81595018"},
                                         Vector{70001, "4b0fadb4eccf57102e9b576ec59a611e"},
                                         Vector{2097152, "b6a8b63c3f61eb1d3d438ff52b095508"}));

TEST(DigestVectors, ZerosAndOnes) {
  const DigestKey key = key_of(0);
  EXPECT_EQ(hex(digest_zeros(key)), "37c91919b05f520da828a5bc7ead4116");
  EXPECT_EQ(hex(digest_zeros(key, 1500)), "32ded8377081690c95352230cffa8c13");
  EXPECT_EQ(hex(digest_chunk(key, Bytes(kChunkBytes, std::byte{0xff}))),
            "c1ea97db1ef52f00e1a80aaf21c10c04");
}

TEST(Digest, ZerosHaveTheZeroDigestAtEveryLength) {
  const DigestKey key = key_of(3);
  for (const std::size_t size :
       {0UL, 1UL, 1000UL, 1024UL, 1025UL, 65536UL, kChunkBytes - 1, std::size_t{kChunkBytes}}) {
    EXPECT_EQ(digest_chunk(key, Bytes(size)), digest_zeros(key, size)) << size;
  }
}

TEST(Digest, ImplementationsAgree) {
  const DigestKey key = key_of(9);
  const Bytes bytes = random_bytes(kChunkBytes + 64, 1);
  for (const std::size_t size : {1UL, 4UL, 1023UL, 1024UL, 99999UL, std::size_t{kChunkBytes}}) {
    for (const std::size_t misaligned : {0UL, 1UL, 4UL, 31UL}) {
      const auto chunk = std::span(bytes).subspan(misaligned, size);
      const Digest expected = digest_chunk_with(hash_block_portable, key, chunk);
      EXPECT_EQ(digest_chunk_with(fastest(), key, chunk), expected) << size;
      EXPECT_EQ(digest_chunk(key, chunk), expected) << size;
    }
  }
}

TEST(Digest, ImplementationsAgreeOnExtremeWords) {
  const DigestKey key = key_of(200);
  for (const auto word : {std::byte{0}, std::byte{0x7f}, std::byte{0x80}, std::byte{0xff}}) {
    const Bytes block(kBlockBytes, word);
    EXPECT_EQ(fastest()(block.data(), key.block_key()),
              hash_block_portable(block.data(), key.block_key()));
  }
}

TEST(Digest, EveryBitOfABlockMatters) {
  const DigestKey key = key_of(1);
  Bytes bytes = random_bytes(2500, 2);
  std::set<std::string> seen{hex(digest_chunk(key, bytes))};
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_TRUE(seen.insert(hex(digest_chunk(key, bytes))).second) << "bit " << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
}

TEST(Digest, EveryBlockOfAWholeChunkMatters) {
  const DigestKey key = key_of(1);
  Bytes bytes = random_bytes(kChunkBytes, 3);
  std::set<std::string> seen{hex(digest_chunk(key, bytes))};
  for (std::size_t block = 0; block < kChunkBytes / kBlockBytes; block += 13) {
    std::byte& byte = bytes[block * kBlockBytes + block % kBlockBytes];
    byte ^= std::byte{1};
    EXPECT_TRUE(seen.insert(hex(digest_chunk(key, bytes))).second) << "block " << block;
    byte ^= std::byte{1};
  }
}

TEST(Digest, OrderOfWordsAndBlocksMatters) {
  const DigestKey key = key_of(1);
  const Bytes before = random_bytes(4 * kBlockBytes, 4);
  for (const std::size_t piece : {std::size_t{4}, std::size_t{8}, std::size_t{16}, kBlockBytes}) {
    Bytes after = before;
    std::swap_ranges(after.begin(), after.begin() + static_cast<std::ptrdiff_t>(piece),
                     after.begin() + static_cast<std::ptrdiff_t>(piece));
    EXPECT_NE(digest_chunk(key, after), digest_chunk(key, before)) << piece;
  }
}

TEST(Digest, LengthMattersEvenForZeros) {
  const DigestKey key = key_of(1);
  std::set<std::string> seen;
  for (std::size_t size = 0; size <= 2 * kBlockBytes; ++size) {
    EXPECT_TRUE(seen.insert(hex(digest_zeros(key, size))).second) << size;
  }
}

TEST(Digest, AnotherKeyGivesAnotherDigest) {
  const Bytes bytes = random_bytes(5000, 5);
  EXPECT_NE(digest_chunk(key_of(1), bytes), digest_chunk(key_of(2), bytes));
  EXPECT_EQ(digest_chunk(key_of(1), bytes), digest_chunk(key_of(1), bytes));
}

TEST(DigestDeathTest, OversizedChunksAbort) {
  const DigestKey key = key_of(1);
  const Bytes bytes(kChunkBytes + 1);
  EXPECT_EXIT((void)digest_chunk(key, bytes), testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace gcr::digest
