#include "migrate-agent/transfer/images/block.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <vector>

#include "tests/transfer/images/support.h"

namespace gcr::images::test {
namespace {

BlockHeader sound() {
  BlockHeader header;
  header.file = 7;
  header.offset = 3 * kWindowBytes;
  header.raw_bytes = 10 * kPageBytes + 100;
  header.codec = store::Codec::kNone;
  header.round = 5;
  header.present.set(0).set(4).set(10);
  header.stored_bytes = 2 * kPageBytes + 100;
  return header;
}

TEST(Block, HeaderSurvivesARoundTrip) {
  const auto decoded = decode(encode(sound()));
  ASSERT_TRUE(decoded) << decoded.error().message();
  EXPECT_EQ(*decoded, sound());
  EXPECT_EQ(decoded->payload_bytes(), 2 * kPageBytes + 100);
}

TEST(Block, HeaderNamesTheProcess) {
  BlockHeader header = sound();
  header.memory = kMaxMemories - 1;
  EXPECT_EQ(decode(encode(header)).value(), header);
  header.shared = true;
  EXPECT_EQ(decode(encode(header)).value(), header);
  header.memory = 0;
  EXPECT_FALSE(decode(encode(header)));
}

TEST(Block, ImpossibleHeaderIsRefused) {
  const std::vector<std::function<void(BlockHeader&)>> lies = {
      [](BlockHeader& h) { h.file = kMaxFiles; },
      [](BlockHeader& h) { h.file = ~0U; },
      [](BlockHeader& h) { h.offset += 1; },
      [](BlockHeader& h) { h.offset = kMaxFileBytes; },
      [](BlockHeader& h) { h.offset = ~std::uint64_t{0} - kWindowBytes + 1; },
      [](BlockHeader& h) { h.raw_bytes = 0; },
      [](BlockHeader& h) { h.raw_bytes = kWindowBytes + 1; },
      [](BlockHeader& h) { h.raw_bytes = ~0U; },
      [](BlockHeader& h) { h.stored_bytes -= 1; },
      [](BlockHeader& h) { h.stored_bytes = ~0U; },
      [](BlockHeader& h) { h.round = kMaxRounds; },
      [](BlockHeader& h) { h.present.reset(); },
      [](BlockHeader& h) { h.present.set(11); },
      [](BlockHeader& h) { h.present.set(kPagesPerWindow - 1); },
      [](BlockHeader& h) { h.codec = store::Codec::kInvalid; },
      [](BlockHeader& h) { h.codec = static_cast<store::Codec>(4); },
      [](BlockHeader& h) { h.codec = store::Codec::kLz4; },  // not shortened
      [](BlockHeader& h) { h.codec = store::Codec::kZstd, h.stored_bytes = 0; },
  };
  for (std::size_t i = 0; i < lies.size(); ++i) {
    BlockHeader header = sound();
    lies[i](header);
    const auto decoded = decode(encode(header));
    ASSERT_FALSE(decoded) << "lie " << i;
    EXPECT_EQ(decoded.error().code(), Code::kProtocol);
  }
}

TEST(Block, HeaderWithOtherMagicOrReservedBytesIsRefused) {
  for (const std::size_t at : {0, 3, 31}) {
    BlockHeaderBytes bytes = encode(sound());
    bytes[at] ^= std::byte{1};
    EXPECT_FALSE(decode(bytes)) << "byte " << at;
  }
}

TEST(Block, EveryFlippedBitIsRefusedOrHarmless) {
  for (std::size_t bit = 0; bit < kBlockHeaderBytes * 8; ++bit) {
    BlockHeaderBytes bytes = encode(sound());
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    const auto decoded = decode(bytes);
    if (!decoded) continue;
    EXPECT_LE(decoded->payload_bytes(), decoded->raw_bytes);
    EXPECT_LE(decoded->stored_bytes, kWindowBytes);
    EXPECT_LT(decoded->file, kMaxFiles);
  }
}

TEST(Block, PackingKeepsExactlyTheNonzeroPages) {
  std::vector<std::byte> window(5 * kPageBytes + 10);
  window[kPageBytes - 1] = std::byte{1};      // the last byte of a page
  window[3 * kPageBytes] = std::byte{3};      // the first
  window[5 * kPageBytes + 9] = std::byte{5};  // the last of all
  const std::vector<std::byte> before = window;
  const PresentPages present = pages_with_data(window);
  EXPECT_EQ(present, PresentPages{}.set(0).set(3).set(5));
  pack(window, present);
  EXPECT_EQ(std::memcmp(window.data(), before.data(), kPageBytes), 0);
  EXPECT_EQ(window[kPageBytes], std::byte{3});
  EXPECT_EQ(window[2 * kPageBytes + 9], std::byte{5});
}

TEST(Block, WindowOfZerosHasNoPages) {
  std::vector<std::byte> window(kWindowBytes);
  EXPECT_TRUE(pages_with_data(window).none());
  window.resize(1);
  EXPECT_TRUE(pages_with_data(window).none());
}

}  // namespace
}  // namespace gcr::images::test
