#include "store/codec.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/transfer/images/support.h"

namespace gcr::images::test {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

class Codecs : public testing::TestWithParam<store::Codec> {};

TEST_P(Codecs, CompressionIsReversible) {
  const std::string raw = text(kMiB, 1);
  std::vector<std::byte> stored(raw.size());
  const std::size_t size = store::compress(GetParam(), bytes_of(raw), stored);
  ASSERT_GT(size, 0u);
  ASSERT_LT(size, raw.size() / 2);
  std::string back(raw.size(), '\0');
  const Status status = store::decompress(GetParam(), std::span(stored).first(size),
                                          std::as_writable_bytes(std::span(back)));
  ASSERT_TRUE(status) << status.error().message();
  EXPECT_EQ(back, raw);
}

TEST_P(Codecs, NoiseIsNotCompressed) {
  const std::string raw = noise(kMiB, 2);
  std::vector<std::byte> stored(raw.size() * 2);
  EXPECT_EQ(store::compress(GetParam(), bytes_of(raw), stored), 0u);
}

TEST_P(Codecs, DamagedInputIsRefusedOrDecodesWithinBounds) {
  const std::string raw = text(64 * kKiB, 3);
  std::vector<std::byte> stored(raw.size());
  stored.resize(store::compress(GetParam(), bytes_of(raw), stored));
  std::vector<std::byte> back(raw.size());
  for (std::size_t at = 0; at < stored.size(); at += 7) {
    std::vector<std::byte> damaged = stored;
    damaged[at] ^= std::byte{0x55};
    const Status status = store::decompress(GetParam(), damaged, back);
    EXPECT_TRUE(status || status.error().code() == Code::kDataLoss);
  }
  EXPECT_FALSE(store::decompress(GetParam(), std::span(stored).first(stored.size() - 1), back));
  back.resize(raw.size() - 1);
  EXPECT_FALSE(store::decompress(GetParam(), stored, back));
  back.resize(raw.size() + 1);
  EXPECT_FALSE(store::decompress(GetParam(), stored, back));
}

INSTANTIATE_TEST_SUITE_P(All, Codecs, testing::Values(store::Codec::kLz4, store::Codec::kZstd),
                         [](const auto& info) {
                           return std::string(store::to_string(info.param));
                         });

/// Reports to the chooser how lz4 and zstd handle blocks of 1 MiB: seconds, and remaining bytes.
store::Codec choice(double link_bytes_per_s, double lz4_seconds, std::size_t lz4_bytes,
                    double zstd_seconds, std::size_t zstd_bytes) {
  store::CodecChooser chooser(store::Compression::kAuto, link_bytes_per_s, 2);
  for (int block = 0; block < 100; ++block) {
    const store::Codec codec = chooser.next();
    if (codec == store::Codec::kLz4) chooser.observe(codec, kMiB, lz4_bytes, lz4_seconds);
    if (codec == store::Codec::kZstd) chooser.observe(codec, kMiB, zstd_bytes, zstd_seconds);
  }
  EXPECT_EQ(chooser.next(), chooser.chosen());
  return chooser.chosen();
}

TEST(CodecChoice, FollowsTheLink) {
  const auto at = [](double rate) { return choice(rate, 0.0015, kMiB / 4, 0.004, kMiB / 8); };
  EXPECT_EQ(at(50e6), store::Codec::kZstd);  // the smallest is sent soonest
  EXPECT_EQ(at(500e6), store::Codec::kLz4);  // zstd's two threads give 524 MB/s
  EXPECT_EQ(at(4e9), store::Codec::kNone);   // neither keeps up
}

TEST(CodecChoice, IsNoneForIncompressibleData) {
  EXPECT_EQ(choice(100e6, 0.0001, kMiB, 0.0001, kMiB), store::Codec::kNone);
}

TEST(CodecChoice, IsTheRequestedOneUnlessTheLinkIsUnknown) {
  EXPECT_EQ(store::CodecChooser(store::Compression::kAuto, 0, 2).next(), store::Codec::kNone);
  EXPECT_EQ(store::CodecChooser(store::Compression::kNone, 1, 2).next(), store::Codec::kNone);
  EXPECT_EQ(store::CodecChooser(store::Compression::kLz4, 1e12, 2).next(), store::Codec::kLz4);
  EXPECT_EQ(store::CodecChooser(store::Compression::kZstd, 1e12, 2).next(), store::Codec::kZstd);
}

}  // namespace
}  // namespace gcr::images::test
