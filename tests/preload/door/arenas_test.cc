// Allocations below 2 MiB: backed, in arenas, and to the application like the driver's.
#include <gtest/gtest.h>

#include <set>

#include "preload/cuda/abi/driver_abi.h"
#include "preload/door_protocol.h"
#include "tests/preload/door/door_helpers.h"

namespace gcr::test {
namespace {

constexpr std::uint64_t kSizes[] = {1,         511,      512,      513,         4096,
                                    64 * kKiB, kMiB - 1, kMiB + 1, 2 * kMiB - 1};

class ArenasTest : public PlainMemoryTest {};

TEST_F(ArenasTest, SmallAllocationsAreTracked) {
  for (const std::uint64_t bytes : kSizes) allocate(bytes);
  const door::Summary told = summary();
  EXPECT_EQ(told.untracked_bytes, 0u);
  EXPECT_EQ(told.fallbacks, 0u);
  EXPECT_GE(told.tracked_bytes, 4 * kMiB);
}

TEST_F(ArenasTest, SmallAllocationsShareFewBuffers) {
  constexpr std::uint64_t kCount = 1200;
  for (std::uint64_t i = 0; i < kCount; ++i) allocate(64 * kKiB);
  const door::Summary told = summary();
  EXPECT_LE(told.allocations, 20u);
  EXPECT_LE(told.tracked_bytes, kCount * 64 * kKiB * 5 / 4);
}

TEST_F(ArenasTest, AllocationsAreAlignedWithTheirRequestedRange) {
  for (const std::uint64_t bytes : kSizes) {
    const std::uint64_t address = allocate(bytes);
    EXPECT_EQ(address % 512, 0u);
    for (const std::uint64_t offset : {std::uint64_t{0}, bytes / 2, bytes - 1}) {
      EXPECT_EQ(subject_.ask(command("range", address + offset)),
                (std::vector<std::uint64_t>{address, bytes}));
    }
    if (bytes % 512 == 0) continue;
    EXPECT_TRUE(range(address + bytes).starts_with("error")) << bytes;
  }
}

TEST_F(ArenasTest, ContentsSurviveADetach) {
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = 0; i < 300; ++i) sizes.push_back(kSizes[i % std::size(kSizes)]);
  expect_contents_survive(sizes);
}

TEST_F(ArenasTest, AttributesAreThoseOfTheAllocation) {
  const std::uint64_t first = allocate(1000);
  const std::uint64_t second = allocate(3000);
  const auto told = subject_.ask(
      command("attributes", second + 2999, CU_POINTER_ATTRIBUTE_CONTEXT,
              CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
              CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
              CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE));
  EXPECT_EQ(told, (std::vector<std::uint64_t>{context_, second, 3000, 1, 0, 0}));
  const auto id = [&](std::uint64_t address) {
    return subject_.value(command("attribute", address, CU_POINTER_ATTRIBUTE_BUFFER_ID));
  };
  EXPECT_EQ(id(first), id(first + 999));
  EXPECT_NE(id(first), id(second));
  const std::uint64_t before = id(second);
  subject_.ask(command("free", second));
  ASSERT_EQ(allocate(3000), second);
  EXPECT_NE(id(second), before);
}

TEST_F(ArenasTest, UnallocatedAddressesAreUnknown) {
  const std::uint64_t address = allocate(1000);
  for (const std::uint64_t elsewhere : {address + 1000, address + 64 * kKiB}) {
    EXPECT_TRUE(range(elsewhere).starts_with("error"));
    EXPECT_EQ(subject_.answer(command("attribute", elsewhere, 2)), "error 1");
    EXPECT_EQ(subject_.ask(command("attributes", elsewhere, 2, 11, 12)),
              (std::vector<std::uint64_t>{0, 0, 0}));
  }
}

TEST_F(ArenasTest, ErrorsOfFreeAreThoseOfTheDriver) {
  const std::uint64_t address = allocate(3000);
  EXPECT_EQ(subject_.answer(command("free", address + 512)), "error 1");
  EXPECT_EQ(subject_.answer(command("free", address + 3072)), "error 1");
  EXPECT_EQ(subject_.answer(command("free", address)), "ok");
  EXPECT_EQ(subject_.answer(command("free", address)), "error 1");
}

TEST_F(ArenasTest, FreesReleaseAllButTheSmallestArena) {
  const std::uint64_t before = free_bytes();
  for (const int order : {0, 1, 2}) {
    std::vector<std::uint64_t> addresses;
    for (int i = 0; i < 400; ++i) addresses.push_back(allocate(100 * kKiB));
    if (order == 1) std::reverse(addresses.begin(), addresses.end());
    if (order == 2) {
      std::stable_partition(addresses.begin(), addresses.end(),
                            [](std::uint64_t address) { return address / 512 % 3 == 0; });
    }
    for (const std::uint64_t address : addresses) subject_.ask(command("free", address));
    EXPECT_EQ(free_bytes(), before - 2 * kMiB);
  }
}

TEST_F(ArenasTest, EmptyArenaIsReleasedBeforeMemoryRunsOut) {
  subject_.ask(command("free", allocate(1)));
  const std::uint64_t left = free_bytes();
  EXPECT_NE(allocate(left + 2 * kMiB), 0u);
}

TEST_F(ArenasTest, SmallAllocationsUseAllRemainingMemory) {
  const std::uint64_t spare = 24 * kMiB;
  allocate(256 * kKiB);
  allocate(free_bytes() / (2 * kMiB) * (2 * kMiB) - spare);
  std::uint64_t allocated = 0;
  while (subject_.answer(command("alloc", 256 * kKiB)).starts_with("ok")) {
    allocated += 256 * kKiB;
  }
  EXPECT_GE(allocated, spare);
  EXPECT_EQ(subject_.answer(command("alloc", 256 * kKiB)), "error 2");
}

TEST_F(ArenasTest, RangeIsNotReusedWhileTheGpuUsesIt) {
  const std::uint64_t stream = subject_.value("stream");
  const std::uint64_t address = allocate(4096);
  subject_.ask(command("stall", stream));
  subject_.ask(command("free_async", address, stream));
  EXPECT_TRUE(range(address).starts_with("error"));
  EXPECT_NE(allocate(4096), address);
  subject_.ask("go_on");
  subject_.ask("sync");
  EXPECT_EQ(allocate(4096), address);
}

TEST_F(ArenasTest, FreeWaitsForTheGpu) {
  const std::uint64_t stream = subject_.value("stream");
  const std::uint64_t address = allocate(4096);
  subject_.ask(command("stall", stream));
  subject_.ask(command("go_on_later", 300));
  subject_.ask(command("free", address));
  EXPECT_EQ(subject_.value("stalled"), 0u);
}

TEST_F(ArenasTest, DuringACaptureFreesAreDeferred) {
  const std::uint64_t stream = subject_.value("stream");
  const std::uint64_t older = allocate(4096);
  subject_.ask(command("capture", stream));
  const std::uint64_t newer = allocate(4096);
  EXPECT_EQ(summary().untracked_bytes, 4096u);
  subject_.ask(command("free", older));
  EXPECT_NE(subject_.value(command("end_capture", stream)), 0u);
  EXPECT_EQ(allocate(4096), older);
  subject_.ask(command("free", newer));
  EXPECT_EQ(summary().untracked_bytes, 0u);
}

TEST_F(ArenasTest, ContextHasItsOwnArenas) {
  const std::uint64_t outer = allocate(1000);
  const std::uint64_t before = free_bytes();
  const std::uint64_t inner_context = subject_.value("context 0");
  const std::uint64_t inner = allocate(1000);
  EXPECT_EQ(subject_.value(command("attribute", inner, CU_POINTER_ATTRIBUTE_CONTEXT)),
            inner_context);
  EXPECT_EQ(summary().allocations, 2u);
  subject_.ask(command("destroy", inner_context));
  subject_.ask(command("current", context_));
  EXPECT_TRUE(range(inner).starts_with("error"));
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(subject_.value(command("range", outer)), outer);
}

/// A part of a GPU has its own context, and no memory.
TEST_F(ArenasTest, ContextWithinAnotherLeavesItsMemory) {
  const std::vector<std::uint64_t> sizes{3000, 3 * kMiB};
  for (int round = 0; round < 3; ++round) {
    const std::uint64_t green = subject_.value("green 0");
    std::vector<std::uint64_t> addresses, sums;
    for (const std::uint64_t bytes : sizes) {
      addresses.push_back(allocate(bytes));
      fill(addresses.back(), bytes, 5);
      sums.push_back(sum(addresses.back(), bytes));
    }
    EXPECT_EQ(subject_.value(command("attribute", addresses[0], CU_POINTER_ATTRIBUTE_CONTEXT)),
              context_);
    gpu::Door door = door_of(subject_);
    detach_and_attach(door);
    subject_.ask(command("current", context_));
    subject_.ask(command("destroy_green", green));
    detach_and_attach(door);
    EXPECT_EQ(good(door.hello()).contexts, 1u);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(sum(addresses[i], sizes[i]), sums[i]);
      free(addresses[i]);
    }
  }
}

TEST_F(ArenasTest, PeersReachAllocationsAcrossADetach) {
  const std::uint64_t older = allocate(4096);
  const std::uint64_t peer = subject_.value("context 1");
  subject_.ask(command("peer_enable", context_));
  subject_.ask(command("current", context_));
  std::vector<std::uint64_t> addresses{older};
  for (int i = 0; i < 3; ++i) addresses.push_back(allocate(2 * kMiB - 1));
  gpu::Door door = door_of(subject_);
  detach_and_attach(door);
  subject_.ask(command("current", peer));
  for (const std::uint64_t address : addresses) {
    fill(address, 4096, 7);
    subject_.ask(command("sum", address, 4096));
  }
}

TEST_F(ArenasTest, SyncMemopsAppliesToOneAllocation) {
  const std::uint64_t first = allocate(4096);
  const std::uint64_t second = allocate(4096);
  subject_.ask(command("sync_memops", first, 1));
  EXPECT_EQ(subject_.value(command("attribute", first, 6)), 1u);
  EXPECT_EQ(subject_.value(command("attribute", second, 6)), 0u);
}

TEST_F(ArenasTest, VirtualMemoryCallsRefuseThem) {
  const std::uint64_t address = allocate(64 * kKiB);
  EXPECT_EQ(subject_.answer(command("retain", address)), "error 1");
  EXPECT_EQ(subject_.answer(command("unmap", address, 2 * kMiB)), "error 1");
  EXPECT_EQ(subject_.answer(command("unreserve", address, 2 * kMiB)), "error 1");
  EXPECT_EQ(subject_.answer(command("access", address, 2 * kMiB, 0, 0)), "error 1");
  EXPECT_EQ(subject_.value(command("range", address)), address);
}

TEST_F(ArenasTest, SmallPitchedAllocationsAreTracked) {
  const auto rows = subject_.ask(command("pitch", 100, 10, 4));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(subject_.ask(command("range", rows[0])),
            (std::vector<std::uint64_t>{rows[0], 10 * rows[1]}));
  EXPECT_EQ(summary().untracked_bytes, 0u);
}

TEST_F(ArenasTest, ConcurrentThreadsSurviveTenDetaches) {
  gpu::Door door = door_of(subject_);
  storm_through_ten_detaches(subject_, door, context_);
  const door::Summary told = good(door.hello());
  EXPECT_EQ(told.untracked_bytes, 0u);
  EXPECT_EQ(told.tracked_bytes, 2 * kMiB);
}

}  // namespace
}  // namespace gcr::test
