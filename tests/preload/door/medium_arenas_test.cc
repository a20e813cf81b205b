// Allocations of 2 to 16 MiB in a process that has many buffers: taken from arenas, and to the
// application like the driver's.
#include <gtest/gtest.h>

#include "preload/cuda/abi/driver_abi.h"
#include "preload/door_protocol.h"
#include "tests/preload/door/door_helpers.h"

namespace gcr::test {
namespace {

constexpr std::uint64_t kMany = 128;

class MediumArenasTest : public PlainMemoryTest {
 protected:
  void SetUp() override {
    PlainMemoryTest::SetUp();
    before_ = free_bytes();
    for (std::uint64_t i = 0; i < kMany; ++i) many_.push_back(allocate(2 * kMiB));
  }
  std::uint32_t buffers() { return summary().allocations; }

  std::uint64_t before_ = 0;
  std::vector<std::uint64_t> many_;
};

TEST_F(MediumArenasTest, FewBuffersAreAllocatedSeparately) {
  EXPECT_EQ(buffers(), kMany);
  free(many_.back());
  EXPECT_EQ(buffers(), kMany - 1);
  const std::uint64_t address = allocate(4 * kMiB);
  EXPECT_EQ(before_ - free_bytes(), (kMany - 1) * 2 * kMiB + 4 * kMiB);
  free(address);
  EXPECT_EQ(before_ - free_bytes(), (kMany - 1) * 2 * kMiB);
}

TEST_F(MediumArenasTest, ManyAllocationsShareFewBuffers) {
  for (int i = 0; i < 320; ++i) allocate(2 * kMiB);
  EXPECT_LE(buffers(), kMany + 320 / 8);
}

TEST_F(MediumArenasTest, LargeOnesAreAllocatedSeparately) {
  allocate(16 * kMiB + 1);
  EXPECT_EQ(before_ - free_bytes(), kMany * 2 * kMiB + 18 * kMiB);
}

TEST_F(MediumArenasTest, RangesAndAttributesAreTheAllocations) {
  for (const std::uint64_t bytes : {2 * kMiB, 3 * kMiB + 1, 16 * kMiB}) {
    const std::uint64_t address = allocate(bytes);
    EXPECT_EQ(address % (2 * kMiB), 0u);
    EXPECT_EQ(subject_.ask(command("range", address + bytes - 1)),
              (std::vector<std::uint64_t>{address, bytes}));
    EXPECT_EQ(subject_.ask(command(
                  "attributes", address + bytes / 2, CU_POINTER_ATTRIBUTE_CONTEXT,
                  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                  CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, CU_POINTER_ATTRIBUTE_MAPPING_SIZE)),
              (std::vector<std::uint64_t>{context_, address, bytes, address,
                                          (bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB)}));
    EXPECT_EQ(subject_.answer(command("free", address + 2 * kMiB / 2)), "error 1");
  }
}

TEST_F(MediumArenasTest, ContentsSurviveDetachAndNeighboursFrees) {
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t i = 0; i < 12; ++i) sizes.push_back((2 + i % 5) * kMiB);
  expect_contents_survive(sizes);
}

TEST_F(MediumArenasTest, FreesReleaseAllMemory) {
  const std::uint64_t before = free_bytes();
  for (const bool reversed : {false, true}) {
    std::vector<std::uint64_t> addresses;
    for (int i = 0; i < 40; ++i) addresses.push_back(allocate(4 * kMiB));
    if (reversed) std::reverse(addresses.begin(), addresses.end());
    for (const std::uint64_t address : addresses) free(address);
    EXPECT_EQ(free_bytes(), before);
  }
}

TEST_F(MediumArenasTest, AllRemainingMemoryIsUsed) {
  const std::uint64_t spare = 80 * kMiB;
  allocate(free_bytes() / (2 * kMiB) * (2 * kMiB) - spare);
  std::uint64_t allocated = 0;
  while (subject_.answer(command("alloc", 2 * kMiB)).starts_with("ok")) allocated += 2 * kMiB;
  EXPECT_EQ(allocated, spare);
  EXPECT_EQ(subject_.answer(command("alloc", 2 * kMiB)), "error 2");
}

TEST_F(MediumArenasTest, RangeIsNotReusedWhileTheGpuUsesIt) {
  const std::uint64_t stream = subject_.value("stream");
  const std::uint64_t address = allocate(4 * kMiB);
  subject_.ask(command("stall", stream));
  subject_.ask(command("free_async", address, stream));
  EXPECT_NE(allocate(4 * kMiB), address);
  subject_.ask("go_on");
  subject_.ask("sync");
  EXPECT_EQ(allocate(4 * kMiB), address);
}

TEST_F(MediumArenasTest, DuringACaptureTheyAreAllocatedSeparately) {
  allocate(2 * kMiB);
  const std::uint32_t before = buffers();
  const std::uint64_t stream = subject_.value("stream");
  subject_.ask(command("capture", stream));
  const std::uint64_t address = allocate(2 * kMiB);
  EXPECT_EQ(buffers(), before + 1);
  EXPECT_NE(subject_.value(command("end_capture", stream)), 0u);
  free(address);
  EXPECT_EQ(buffers(), before);
}

TEST_F(MediumArenasTest, ContextHasItsOwnArenas) {
  allocate(2 * kMiB);
  const std::uint64_t before = free_bytes();
  const std::uint64_t inner = subject_.value("context 0");
  const std::uint64_t address = allocate(2 * kMiB);
  EXPECT_EQ(subject_.value(command("attribute", address, CU_POINTER_ATTRIBUTE_CONTEXT)), inner);
  subject_.ask(command("destroy", inner));
  subject_.ask(command("current", context_));
  EXPECT_TRUE(subject_.answer(command("range", address)).starts_with("error"));
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(MediumArenasTest, PeersReachAllocationsAcrossADetach) {
  std::vector<std::uint64_t> addresses{allocate(2 * kMiB)};
  const std::uint64_t peer = subject_.value("context 1");
  subject_.ask(command("peer_enable", context_));
  subject_.ask(command("current", context_));
  for (int i = 0; i < 20; ++i) addresses.push_back(allocate(2 * kMiB));
  gpu::Door door = door_of(subject_);
  detach_and_attach(door);
  subject_.ask(command("current", peer));
  for (const std::uint64_t address : addresses) fill(address, 4096, 7);
}

TEST_F(MediumArenasTest, OtherProcessOpensOneWithoutItsNeighbours) {
  Subject taker;
  taker.ask("init");
  taker.ask("primary 0");
  allocate(4 * kMiB);
  const std::uint64_t given = allocate(4 * kMiB);
  fill(given, 4 * kMiB, 3);
  const std::string handle = subject_.answer(command("ipc_get", given)).substr(3);
  const std::uint64_t taken = taker.value("ipc_open " + handle);
  EXPECT_EQ(taker.value(command("sum", taken, 4 * kMiB)), sum(given, 4 * kMiB));
  EXPECT_EQ(taker.ask(command("range", taken)), (std::vector<std::uint64_t>{taken, 4 * kMiB}));
  EXPECT_TRUE(taker.answer(command("range", taken - 1)).starts_with("error"));
  taker.ask(command("ipc_close", taken));
  EXPECT_TRUE(taker.answer(command("range", taken)).starts_with("error"));
}

TEST_F(MediumArenasTest, ConcurrentThreadsSurviveTenDetaches) {
  const std::uint64_t before = free_bytes();
  gpu::Door door = door_of(subject_);
  storm_through_ten_detaches(subject_, door, context_);
  EXPECT_EQ(good(door.hello()).fallbacks, 0u);
  EXPECT_EQ(free_bytes(), before - 2 * kMiB);  // the smallest of the small arenas stays
}

}  // namespace
}  // namespace gcr::test
