// Components of a thread's extended state are extracted from one image and put into another, whose
// layout may differ.
#include "migrate-agent/criu/threads/extended_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace gcr::criu {
namespace {

using testing::Each;

constexpr std::size_t kImageBytes = 4096;
constexpr std::size_t kHeader = 512;

StateLayout layout(std::uint32_t configuration, std::uint32_t tiles) {
  StateLayout made;
  made.components[9] = {1000, 8};  // saved by CRIU
  made.components[17] = {configuration, 64};
  made.components[18] = {tiles, 1024};
  return made;
}

std::vector<std::byte> image(std::uint64_t in_use) {
  std::vector<std::byte> bytes(kImageBytes, std::byte{0x11});
  std::memcpy(bytes.data() + kHeader, &in_use, sizeof(in_use));
  return bytes;
}

std::uint64_t in_use(const std::vector<std::byte>& bytes) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes.data() + kHeader, sizeof(bits));
  return bits;
}

void fill(std::vector<std::byte>& bytes, std::size_t at, std::size_t size, int value) {
  std::memset(bytes.data() + at, value, size);
}

std::span<const std::byte> part(const std::vector<std::byte>& bytes, std::size_t at,
                                std::size_t size) {
  return std::span(bytes).subspan(at, size);
}

constexpr std::uint64_t kTiles = std::uint64_t{3} << 17;

TEST(ExtendedStateTest, SurvivesAnotherLayout) {
  std::vector<std::byte> from = image(kTiles | 0x207);
  fill(from, 600, 64, 7);
  fill(from, 700, 1024, 8);
  const ExtendedState state = take_state(from, layout(600, 700));
  EXPECT_EQ(state.components, kTiles);
  ASSERT_EQ(state.bytes.size(), 64u + 1024);
  std::vector<std::byte> to = image(0x3);
  ASSERT_TRUE(put_state(to, layout(2000, 2064), state.components, state.bytes));
  EXPECT_EQ(in_use(to), kTiles | 0x3);
  EXPECT_THAT(part(to, 2000, 64), Each(std::byte{7}));
  EXPECT_THAT(part(to, 2064, 1024), Each(std::byte{8}));
  EXPECT_THAT(part(to, 576, 2000 - 576), Each(std::byte{0x11}));
  EXPECT_THAT(part(to, 2064 + 1024, kImageBytes - 2064 - 1024), Each(std::byte{0x11}));
}

TEST(ExtendedStateTest, InitialAndCriuComponentsAreSkipped) {
  EXPECT_EQ(take_state(image(0x2ff), layout(600, 700)).components, 0u);
  EXPECT_EQ(take_state(image(std::uint64_t{1} << 40), layout(600, 700)).components, 0u);
  EXPECT_EQ(take_state(std::vector<std::byte>(kHeader), layout(600, 700)).components, 0u);
  EXPECT_EQ(take_state(image(kTiles), layout(600, kImageBytes - 1000)).components, 1u << 17);
}

TEST(ExtendedStateTest, LayoutKnowsWhetherCriuSavesAll) {
  StateLayout criu_alone;
  criu_alone.components[9] = {1000, 8};
  EXPECT_FALSE(StateLayout().exceeds_criu());
  EXPECT_FALSE(criu_alone.exceeds_criu());
  EXPECT_TRUE(layout(600, 700).exceeds_criu());
}

TEST(ExtendedStateTest, MisfittingStateIsRefused) {
  const std::vector<std::byte> bytes(64 + 1024);
  const auto refused = [&](const StateLayout& here, std::uint64_t components, std::size_t size) {
    std::vector<std::byte> to = image(0x3);
    const Status put = put_state(to, here, components, part(bytes, 0, size));
    return put ? Code::kInvalid : put.error().code();
  };
  EXPECT_EQ(refused(layout(600, 700), kTiles, bytes.size()), Code::kInvalid);
  EXPECT_EQ(refused(StateLayout(), kTiles, bytes.size()), Code::kUnsupported);
  EXPECT_EQ(refused(layout(600, kImageBytes - 8), kTiles, bytes.size()), Code::kUnsupported);
  EXPECT_EQ(refused(layout(600, 700), kTiles, bytes.size() - 1), Code::kProtocol);
  EXPECT_EQ(refused(layout(600, 700), std::uint64_t{1} << 17, bytes.size()), Code::kProtocol);
  EXPECT_EQ(refused(layout(600, 700), kTiles | 1, bytes.size()), Code::kProtocol);
  EXPECT_EQ(refused(layout(600, 700), std::uint64_t{1} << 63, 0), Code::kProtocol);
}

TEST(ExtendedStateTest, ComponentsOfThisCpuFollowTheHeader) {
  for (const auto& [offset, size] : StateLayout::of_this_processor().components) {
    EXPECT_TRUE(size == 0 || offset >= kHeader + 64) << offset;
    EXPECT_LE(offset + size, kMaxStateBytes);
  }
}

}  // namespace
}  // namespace gcr::criu
