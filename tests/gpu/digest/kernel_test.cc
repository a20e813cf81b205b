// The kernel's own arithmetic, run on the CPU, gives what digest_chunk() gives.
#include "tests/gpu/digest/on_cpu/kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "migrate-agent/gpu/digest/digest.h"

namespace gcr::digest {
namespace {

/// Ascending bytes, 16-byte aligned, followed by others.
struct Content {
  Content(std::size_t size, std::uint64_t seed) : words(size / 16 + 1), size_bytes(size) {
    std::mt19937_64 random(seed);
    for (auto& word : words) word = {random(), random()};
  }
  std::span<const std::byte> bytes() const {
    return std::as_bytes(std::span(words)).first(size_bytes);
  }

  struct alignas(16) Word {
    std::uint64_t low, high;
  };
  std::vector<Word> words;
  std::size_t size_bytes;
};

void expect_same(const std::vector<Content>& contents, unsigned blocks) {
  std::array<std::byte, 32> secret;
  std::ranges::fill(secret, std::byte{0x5a});
  const DigestKey key = DigestKey::expand(secret);
  std::vector<Content::Word> in_vram((key.block_key().size_bytes() + key.sum_key().size_bytes()) /
                                     sizeof(Content::Word));
  auto* const at = reinterpret_cast<std::byte*>(in_vram.data());
  std::memcpy(at, key.block_key().data(), key.block_key().size_bytes());
  std::memcpy(at + key.block_key().size_bytes(), key.sum_key().data(), key.sum_key().size_bytes());
  std::vector<on_cpu::KernelChunk> chunks;
  for (const Content& content : contents) {
    chunks.push_back({content.bytes().data(), static_cast<std::uint32_t>(content.bytes().size())});
  }
  std::vector<Digest> digests(chunks.size());
  on_cpu::digest_chunks(blocks, chunks.data(), static_cast<unsigned>(chunks.size()),
                        reinterpret_cast<const std::uint32_t*>(in_vram.data()),
                        reinterpret_cast<std::uint64_t*>(digests.data()));
  for (std::size_t i = 0; i < contents.size(); ++i) {
    EXPECT_EQ(digests[i], digest_chunk(key, contents[i].bytes()))
        << "chunk " << i << " of " << contents[i].size_bytes << " bytes";
  }
}

TEST(DigestKernel, LengthsAroundStepAndBlockEndsMatchDefinition) {
  std::vector<Content> contents;
  for (const std::size_t around : {0, 16, 1024, 4096, 8 * 4096, 9 * 4096 + 1024}) {
    for (const int off : {-17, -1, 0, 1, 3, 15, 16, 17}) {
      const auto size = static_cast<std::ptrdiff_t>(around) + off;
      if (size >= 0) contents.emplace_back(static_cast<std::size_t>(size), contents.size());
    }
  }
  expect_same(contents, 3);
}

TEST(DigestKernel, WholeChunkMatchesDefinition) {
  std::vector<Content> contents;
  contents.emplace_back(kChunkBytes, 1);
  contents.emplace_back(kChunkBytes - 5, 2);
  expect_same(contents, 1);
  std::ranges::fill(contents.front().words, Content::Word{~0ull, ~0ull});
  std::ranges::fill(contents.back().words, Content::Word{0, 0});
  expect_same(contents, 2);
}

TEST(DigestKernel, SurplusBlocksDoNoHarm) { expect_same({Content(5000, 3)}, 7); }

}  // namespace
}  // namespace gcr::digest
