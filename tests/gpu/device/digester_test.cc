// The digest computed where the chunks lie equals that of the same bytes on the CPU, with each
// libcuda.so.1 that the loader finds: the software GPU's or a real one's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "src/base/units.h"
#include "tests/support/driver_under_test.h"

namespace gcr::device {
namespace {

using Bytes = std::vector<std::byte>;

digest::DigestKey key_of(std::uint8_t first) {
  std::array<std::byte, 32> secret;
  for (std::size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<std::byte>(first + i);
  return digest::DigestKey::expand(secret);
}

Bytes random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

/// A part of a buffer that is both in VRAM and in host memory.
struct Piece {
  std::size_t offset = 0;
  std::uint32_t length_bytes = 0;
};

class GpuDigest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto driver = load_driver_under_test();
    ASSERT_TRUE(driver) << driver.error().message();
    auto gpu = (*driver)->open((*driver)->gpus().front());
    ASSERT_TRUE(gpu) << gpu.error().message();
    gpu_ = *gpu;
    stream_ = std::move(gpu_->stream().value());
  }

  void copy_in(Address to, const void* bytes, std::size_t size_bytes) {
    const auto stream = std::move(gpu_->stream().value());
    EXPECT_TRUE(stream->copy_in(to, static_cast<const std::byte*>(bytes), size_bytes));
    EXPECT_TRUE(stream->synchronize());
  }

  std::unique_ptr<Scratch> in_vram(const void* bytes, std::size_t size_bytes) {
    auto memory = gpu_->scratch(size_bytes);
    EXPECT_TRUE(memory) << memory.error().message();
    copy_in((*memory)->address(), bytes, size_bytes);
    return std::move(*memory);
  }

  std::unique_ptr<HostMemory> pinned(std::size_t size_bytes) {
    auto memory = gpu_->pinned(size_bytes);
    EXPECT_TRUE(memory) << memory.error().message();
    return std::move(*memory);
  }

  std::unique_ptr<Digester> digester(const digest::DigestKey& key) {
    auto made = gpu_->digester(key);
    EXPECT_TRUE(made) << made.error().message();
    return std::move(*made);
  }

  /// One launch over all pieces, through page-locked memory.
  std::vector<digest::Digest> digests(const Digester& digester, Address base,
                                      const std::vector<Piece>& pieces) {
    const auto chunks = pinned(pieces.size() * sizeof(Chunk));
    const auto found = pinned(pieces.size() * sizeof(digest::Digest));
    auto* chunk = reinterpret_cast<Chunk*>(chunks->bytes().data());
    const auto* first = reinterpret_cast<digest::Digest*>(found->bytes().data());
    for (const Piece& piece : pieces) *chunk++ = {base + piece.offset, piece.length_bytes};
    const auto stream = std::move(gpu_->stream().value());
    const Status enqueued =
        digester.enqueue(reinterpret_cast<Chunk*>(chunks->bytes().data()), pieces.size(),
                         reinterpret_cast<digest::Digest*>(found->bytes().data()), *stream);
    EXPECT_TRUE(enqueued) << enqueued.error().message();
    EXPECT_TRUE(stream->synchronize());
    return {first, first + pieces.size()};
  }

  void expect_equal(const digest::DigestKey& key, const Bytes& bytes,
                    const std::vector<Piece>& pieces) {
    const auto memory = in_vram(bytes.data(), bytes.size());
    const auto found = digests(*digester(key), memory->address(), pieces);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const auto chunk = std::span(bytes).subspan(pieces[i].offset, pieces[i].length_bytes);
      EXPECT_EQ(found[i], digest::digest_chunk(key, chunk))
          << pieces[i].length_bytes << " bytes at " << pieces[i].offset;
    }
  }

  std::shared_ptr<Gpu> gpu_;
  std::unique_ptr<Stream> stream_;
};

std::string hex(const digest::Digest& digest) {
  std::string text;
  for (const std::uint8_t byte : digest.bytes) text += fmt::format("{:02x}", byte);
  return text;
}

// The vectors of tests/gpu/digest, which were computed from the definition independently.
TEST_F(GpuDigest, MatchesTheDefinition) {
  Bytes bytes(kChunkBytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 7 + (i >> 8) * 13 + 1);
  }
  const auto memory = in_vram(bytes.data(), bytes.size());
  const auto found = digests(*digester(key_of(0)), memory->address(),
                             {{0, 0}, {0, 1}, {0, 1023}, {0, 1025}, {0, 70001}, {0, kChunkBytes}});
  EXPECT_EQ(hex(found[0]), "00000000000000000000000000000000");
  EXPECT_EQ(hex(found[1]), "061eda0494f26e0b5904d90bfa4d7001");
  EXPECT_EQ(hex(found[2]), "18900b628bc6c61f073547a4f492cd1e");
  EXPECT_EQ(hex(found[3]), "2948820d788c180f5c91f1c1457cf419");
  EXPECT_EQ(hex(found[4]), "4b0fadb4eccf57102e9b576ec59a611e");
  EXPECT_EQ(hex(found[5]), "b6a8b63c3f61eb1d3d438ff52b095508");
}

TEST_F(GpuDigest, EqualsCpuDigestAtEveryLength) {
  std::vector<Piece> pieces;
  for (std::uint32_t length = 0; length <= 130; ++length) pieces.push_back({0, length});
  for (std::uint32_t near = 1024; near <= kChunkBytes; near *= 2) {
    for (const std::uint32_t length : {near - 17, near - 16, near - 1, near, near + 1, near + 16}) {
      if (length <= kChunkBytes) pieces.push_back({0, length});
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 64; ++i) {
    pieces.push_back({0, static_cast<std::uint32_t>(random() % kChunkBytes) | 1});
  }
  expect_equal(key_of(0x31), random_bytes(kChunkBytes, 1), pieces);
}

TEST_F(GpuDigest, EqualsCpuDigestAtEveryAlignedAddress) {
  std::vector<Piece> pieces;
  for (std::size_t offset = 0; offset < 2048; offset += 16) pieces.push_back({offset, 9001});
  expect_equal(key_of(0x32), random_bytes(16384, 2), pieces);
}

TEST_F(GpuDigest, EqualsCpuDigestForExtremeWords) {
  for (const std::byte value : {std::byte{0x7f}, std::byte{0x80}, std::byte{0xff}}) {
    expect_equal(key_of(0xff), Bytes(kChunkBytes, value), {{0, kChunkBytes}, {0, 100001}});
  }
}

TEST_F(GpuDigest, ZerosHaveTheDigestOfZeros) {
  const auto key = key_of(0x33);
  const Bytes zeros(kChunkBytes);
  const auto memory = in_vram(zeros.data(), zeros.size());
  const auto found = digests(*digester(key), memory->address(), {{0, kChunkBytes}, {64, 3000}});
  EXPECT_EQ(found[0], digest::digest_zeros(key));
  EXPECT_EQ(found[1], digest::digest_zeros(key, 3000));
}

TEST_F(GpuDigest, OneLaunchTakesMoreChunksThanRunConcurrently) {
  const Bytes bytes = random_bytes(24 * kChunkBytes, 3);
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < 24; ++i) pieces.push_back({i * kChunkBytes, kChunkBytes});
  for (std::size_t i = 0; i < 5000; ++i) pieces.push_back({i * 4096, 4096});
  expect_equal(key_of(0x34), bytes, pieces);
}

TEST_F(GpuDigest, EveryChangedBitIsFound) {
  const auto key = key_of(0x35);
  const auto made = digester(key);
  Bytes bytes = random_bytes(kChunkBytes, 4);
  const auto memory = in_vram(bytes.data(), bytes.size());
  const auto before = digests(*made, memory->address(), {{0, kChunkBytes}});
  for (std::size_t at = 0; at < bytes.size(); at += 104729) {
    const std::byte changed = bytes[at] ^ std::byte{0x10};
    copy_in(memory->address() + at, &changed, 1);
    EXPECT_NE(digests(*made, memory->address(), {{0, kChunkBytes}}), before) << "byte " << at;
    copy_in(memory->address() + at, &bytes[at], 1);
  }
  EXPECT_EQ(digests(*made, memory->address(), {{0, kChunkBytes}}), before);
}

TEST_F(GpuDigest, DescriptorsAndDigestsMayLieInVram) {
  const auto key = key_of(0x36);
  const Bytes bytes = random_bytes(3 * kChunkBytes, 5);
  const auto memory = in_vram(bytes.data(), bytes.size());
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < 3; ++i)
    chunks.push_back({memory->address() + i * kChunkBytes, 77777});
  const auto descriptors = in_vram(chunks.data(), chunks.size() * sizeof(Chunk));
  std::vector<digest::Digest> found(chunks.size());
  const auto digests = in_vram(found.data(), found.size() * sizeof(digest::Digest));
  const auto made = digester(key);
  // NOLINTBEGIN(performance-no-int-to-ptr): device addresses
  ASSERT_TRUE(made->enqueue(reinterpret_cast<const Chunk*>(descriptors->address()), 3,
                            reinterpret_cast<digest::Digest*>(digests->address()), *stream_));
  // NOLINTEND(performance-no-int-to-ptr)
  ASSERT_TRUE(stream_->copy_out(reinterpret_cast<std::byte*>(found.data()), digests->address(),
                                found.size() * sizeof(digest::Digest)));
  ASSERT_TRUE(stream_->synchronize());
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(found[i],
              digest::digest_chunk(key, std::span(bytes).subspan(i * kChunkBytes, 77777)));
  }
}

TEST_F(GpuDigest, NoChunksLaunchNothing) {
  const auto made = digester(key_of(0x37));
  EXPECT_TRUE(made->enqueue(nullptr, 0, nullptr, *stream_));
  EXPECT_TRUE(stream_->synchronize());
}

TEST_F(GpuDigest, TwoThreadsShareADigesterOnSeparateStreams) {
  const auto key = key_of(0x38);
  const auto made = digester(key);
  const auto work = [&](std::uint64_t seed) {
    const Bytes bytes = random_bytes(4 * kChunkBytes, seed);
    const auto memory = in_vram(bytes.data(), bytes.size());
    for (std::uint32_t round = 0; round < 20; ++round) {
      const std::uint32_t length = kChunkBytes - 31 * round;
      const auto found = digests(*made, memory->address(), {{0, length}, {kChunkBytes, length}});
      EXPECT_EQ(found[0], digest::digest_chunk(key, std::span(bytes).first(length)));
      EXPECT_EQ(found[1], digest::digest_chunk(key, std::span(bytes).subspan(kChunkBytes, length)));
    }
  };
  std::jthread other(work, 8);
  work(9);
}

}  // namespace
}  // namespace gcr::device
