#include "src/base/raw_bytes.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "src/base/units.h"

namespace gcr {
namespace {

constexpr std::size_t kBytes = 64 * kMiB;

/// How many of the pages that lie wholly in `bytes` are in memory.
std::size_t pages_in_memory(std::span<std::byte> bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t begin = round_up(first, page);
  const std::uintptr_t end = (first + bytes.size()) / page * page;
  std::vector<unsigned char> there((end - begin) / page);
  EXPECT_EQ(::mincore(reinterpret_cast<void*>(begin), end - begin, there.data()), 0);
  return static_cast<std::size_t>(
      std::ranges::count_if(there, [](unsigned char state) { return (state & 1) != 0; }));
}

TEST(RawBytes, UseNoMemoryBeforeTheFirstWrite) {
  RawBytes bytes(kBytes);
  ASSERT_EQ(std::span(bytes).size(), kBytes);
  EXPECT_LE(pages_in_memory(bytes), 1u);  // a sanitizer's allocator marks the beginning
  bytes.data()[kBytes / 2] = std::byte{7};
  EXPECT_GE(pages_in_memory(bytes), 1u);
}

TEST(RawBytes, MoveKeepsTheContent) {
  RawBytes bytes(kMiB);
  std::byte* const there = bytes.data();
  bytes.data()[5] = std::byte{7};
  const RawBytes moved = std::move(bytes);
  EXPECT_EQ(moved.data(), there);
  EXPECT_EQ(std::span(moved)[5], std::byte{7});
}

}  // namespace
}  // namespace gcr
