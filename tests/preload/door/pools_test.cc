// Stream-ordered memory: tracked, in the order of streams, and to the application like the
// driver's.
#include <gtest/gtest.h>

#include <map>

#include "preload/cuda/abi/driver_abi.h"
#include "preload/door_protocol.h"
#include "tests/preload/door/door_helpers.h"

namespace gcr::test {
namespace {

constexpr std::uint64_t kStretch = 32 * kMiB;

class PoolsTest : public testing::Test {
 protected:
  void SetUp() override {
    subject_.ask("init");
    context_ = subject_.value("primary 0");
    pool_ = subject_.value("default_pool 0");
    first_ = subject_.value("stream");
    second_ = subject_.value("stream");
  }
  std::uint64_t allocate(std::uint64_t bytes, std::uint64_t stream) {
    return subject_.value(command("alloc_async", bytes, stream));
  }
  std::uint64_t allocate(std::uint64_t bytes, std::uint64_t stream, std::uint64_t pool) {
    return subject_.value(command("alloc_async", bytes, stream, pool));
  }
  void free(std::uint64_t address, std::uint64_t stream) {
    EXPECT_EQ(subject_.answer(command("free_async", address, stream)), "ok");
  }
  void keep_everything() {
    subject_.ask(command("set_pool_number", pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 1ull << 40));
  }
  /// The stream does nothing more before "go_on".
  void stall(std::uint64_t stream) { subject_.ask(command("stall", stream)); }
  void go_on() { subject_.ask("go_on"); }
  std::uint64_t sum(std::uint64_t address, std::uint64_t bytes) {
    return subject_.value(command("sum", address, bytes));
  }
  std::uint64_t number(CUmemPool_attribute which) {
    return subject_.value(command("pool_number", pool_, which));
  }
  std::uint64_t free_bytes() { return subject_.ask("info").at(0); }
  door::Summary summary() {
    gpu::Door door = door_of(subject_);
    return good(door.hello());
  }

  Subject subject_;
  std::uint64_t context_ = 0, pool_ = 0, first_ = 0, second_ = 0;
};

TEST_F(PoolsTest, MemoryIsTrackedInFewBuffers) {
  for (int i = 0; i < 1000; ++i) allocate(100 * kKiB, first_);
  const door::Summary told = summary();
  EXPECT_EQ(told.untracked_bytes, 0u);
  EXPECT_EQ(told.fallbacks, 0u);
  EXPECT_GE(told.tracked_bytes, 1000 * 100 * kKiB);
  EXPECT_LE(told.tracked_bytes, 1000 * 100 * kKiB + kStretch);
  EXPECT_LE(told.allocations, 4u);
}

TEST_F(PoolsTest, ContentsAndAddressesSurviveADetach) {
  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> sums;
  for (std::uint64_t i = 0; i < 100; ++i) {
    const std::uint64_t bytes = 1 + i * 7919 % (600 * kKiB);
    const std::uint64_t address = allocate(bytes, i % 2 == 0 ? first_ : second_);
    EXPECT_EQ(address % 512, 0u);
    subject_.ask(command("fill", address, bytes, i));
    sums[address] = {bytes, sum(address, bytes)};
  }
  gpu::Door door = door_of(subject_);
  detach_and_attach(door);
  for (const auto& [address, expected] : sums) {
    EXPECT_EQ(sum(address, expected.first), expected.second);
    free(address, first_);
  }
}

TEST_F(PoolsTest, StreamReusesItsOwnFreesAtOnce) {
  stall(first_);
  const std::uint64_t address = allocate(4096, first_);
  free(address, first_);
  EXPECT_EQ(allocate(4096, first_), address);
  go_on();
}

TEST_F(PoolsTest, OtherStreamReusesAFreeOnlyOnceReached) {
  keep_everything();
  for (const bool several : {false, true}) {
    const std::uint64_t address = allocate(20 * kMiB, first_);
    stall(first_);
    subject_.ask(command("fill_async", address, 4096, 1, first_));
    free(address, first_);
    const std::uint64_t elsewhere = allocate(20 * kMiB, second_);
    EXPECT_NE(elsewhere, address);
    subject_.ask(command("fill_async", elsewhere, 4096, 2, second_));
    subject_.ask(command("sync_stream", second_));
    go_on();
    subject_.ask(command("sync_stream", first_));
    const std::uint64_t expected = sum(elsewhere, 4096);
    EXPECT_EQ(allocate(20 * kMiB, second_), address) << several;
    subject_.ask(command("fill_async", address, 4096, 3, second_));
    EXPECT_EQ(sum(elsewhere, 4096), expected);
    free(address, second_);
    free(elsewhere, second_);
    subject_.ask("sync");
    subject_.ask(command("trim", pool_, 0));
  }
}

TEST_F(PoolsTest, DefaultStreamsOfTwoContextsAreSeparate) {
  keep_everything();
  const std::uint64_t address = allocate(20 * kMiB, 0);
  stall(0);
  free(address, 0);
  EXPECT_EQ(allocate(20 * kMiB, 0), address);
  free(address, 0);
  subject_.value("context 0");
  EXPECT_NE(allocate(20 * kMiB, 0), address);
  go_on();
  subject_.ask(command("current", context_));
  subject_.ask("sync");
  EXPECT_EQ(allocate(20 * kMiB, second_), address);
}

TEST_F(PoolsTest, CompletedFreeIsReusedWithoutWaiting) {
  keep_everything();
  allocate(1, second_);
  const std::uint64_t address = allocate(20 * kMiB, first_);
  free(address, first_);
  subject_.ask(command("sync_stream", second_));  // no more than time
  EXPECT_EQ(allocate(20 * kMiB, second_), address);
}

TEST_F(PoolsTest, WithoutOpportunismReuseNeedsASynchronisation) {
  keep_everything();
  subject_.ask(command("set_pool_flag", pool_, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0));
  allocate(1, second_);
  const std::uint64_t address = allocate(20 * kMiB, first_);
  free(address, first_);
  EXPECT_NE(allocate(20 * kMiB, second_), address);
  subject_.ask("sync");
  EXPECT_EQ(allocate(20 * kMiB, second_), address);
}

TEST_F(PoolsTest, WithoutMemoryAStreamMayWaitForAnother) {
  for (const int allowed : {0, 1}) {
    subject_.ask(command("set_pool_flag", pool_, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
                         allowed));
    const std::uint64_t bytes = (free_bytes() - kStretch) / (2 * kMiB) * (2 * kMiB);
    const std::uint64_t other = allocate(4096, second_);
    const std::uint64_t address = allocate(bytes - kStretch, first_);
    stall(first_);
    subject_.ask(command("fill_async", address, 4096, 1, first_));
    free(address, first_);
    const std::string answer = subject_.answer(command("alloc_async", bytes - kStretch, second_));
    if (allowed == 0) {
      EXPECT_EQ(answer, "error 2");
    } else {
      EXPECT_TRUE(answer.starts_with("ok")) << answer;
      subject_.ask(command("fill_async", address, 4096, 2, second_));
    }
    go_on();
    subject_.ask("sync");
    if (allowed != 0) {
      const std::uint64_t after = sum(address, 4096);
      subject_.ask(command("fill", address, 4096, 2));
      EXPECT_EQ(sum(address, 4096), after);
      free(address, second_);
    }
    free(other, second_);
    subject_.ask("sync");
  }
}

TEST_F(PoolsTest, DestroyedStreamReleasesItsMemory) {
  keep_everything();
  const std::uint64_t address = allocate(20 * kMiB, first_);
  free(address, first_);
  subject_.ask(command("destroy_stream", first_));
  subject_.ask(command("sync_stream", second_));
  EXPECT_EQ(allocate(20 * kMiB, second_), address);
}

TEST_F(PoolsTest, ContextLeavesTheMemoryOfPools) {
  const std::uint64_t inner = subject_.value("context 0");
  const std::uint64_t stream = subject_.value("stream");
  const std::uint64_t address = allocate(4096, stream);
  const std::uint64_t freed = allocate(4096, stream);
  subject_.ask(command("fill", address, 4096, 7));
  const std::uint64_t expected = sum(address, 4096);
  free(freed, stream);
  subject_.ask(command("destroy", inner));
  subject_.ask(command("current", context_));
  EXPECT_EQ(sum(address, 4096), expected);
  EXPECT_EQ(allocate(4096, first_), freed);
  EXPECT_EQ(summary().allocations, 1u);
}

TEST_F(PoolsTest, MemoryOverTheThresholdIsReleasedAtASync) {
  const std::uint64_t before = free_bytes();
  for (const char* wait : {"sync", "sync_stream"}) {
    free(allocate(40 * kMiB, first_), first_);
    free(allocate(5 * kMiB, first_), first_);
    EXPECT_LE(free_bytes(), before - 40 * kMiB);
    subject_.ask(command(wait, first_));
    EXPECT_EQ(free_bytes(), before);
    EXPECT_EQ(number(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0u);
  }
  subject_.ask(command("set_pool_number", pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 40 * kMiB));
  free(allocate(40 * kMiB, first_), first_);
  free(allocate(64 * kMiB, first_), first_);
  subject_.ask("sync");
  EXPECT_GE(number(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 40 * kMiB);
  EXPECT_LE(number(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 64 * kMiB);
}

TEST_F(PoolsTest, MemoryInUseIsNotReleased) {
  const std::uint64_t kept = allocate(4096, first_);
  free(allocate(4096, first_), first_);
  subject_.ask("sync");
  EXPECT_EQ(number(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), kStretch);
  subject_.ask(command("fill", kept, 4096, 1));
}

TEST_F(PoolsTest, AttributesReportUsedAndReserved) {
  const std::uint64_t address = allocate(3 * kMiB, first_);
  EXPECT_EQ(number(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 3 * kMiB);
  EXPECT_EQ(number(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), kStretch);
  free(address, first_);
  EXPECT_EQ(number(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0u);
  EXPECT_EQ(number(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 3 * kMiB);
  EXPECT_EQ(subject_.answer(command("set_pool_number", pool_, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)),
            "ok");
  EXPECT_EQ(number(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 0u);
  for (int flag = 1; flag <= 3; ++flag) {
    EXPECT_EQ(subject_.value(command("pool_flag", pool_, flag)), 1u);
    subject_.ask(command("set_pool_flag", pool_, flag, 0));
    EXPECT_EQ(subject_.value(command("pool_flag", pool_, flag)), 0u);
  }
}

TEST_F(PoolsTest, PointersHaveTheirAllocationAndPool) {
  allocate(4096, first_);
  const std::uint64_t address = allocate(3000, first_);
  EXPECT_EQ(subject_.ask(command("range", address + 2999)),
            (std::vector<std::uint64_t>{address, 3000}));
  EXPECT_TRUE(subject_.answer(command("range", address + 3000)).starts_with("error"));
  const auto told = subject_.ask(
      command("attributes", address + 1, CU_POINTER_ATTRIBUTE_CONTEXT,
              CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
              CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
              CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE));
  EXPECT_EQ(told, (std::vector<std::uint64_t>{0, address, 3000, 0, 0, pool_}));
  EXPECT_TRUE(subject_.answer(command("ipc_get", address)).starts_with("error"));
  EXPECT_EQ(subject_.answer(command("unmap", address, 2 * kMiB)), "error 1");
}

TEST_F(PoolsTest, ErrorsAreThoseOfTheDriver) {
  const std::uint64_t address = allocate(3000, first_);
  EXPECT_EQ(subject_.answer(command("free_async", address + 512, first_)), "error 1");
  free(address, first_);
  EXPECT_EQ(subject_.answer(command("free_async", address, first_)), "error 1");
  EXPECT_EQ(subject_.answer(command("free", address)), "error 1");
  EXPECT_EQ(subject_.answer(command("alloc_async", 1ull << 50, first_)), "error 2");
  EXPECT_EQ(subject_.answer(command("destroy_pool", pool_)), "error 1");
}

TEST_F(PoolsTest, FreeWithoutAStreamSharesTheMemory) {
  keep_everything();
  const std::uint64_t address = allocate(20 * kMiB, first_);
  EXPECT_EQ(subject_.answer(command("free", address)), "ok");
  EXPECT_EQ(allocate(20 * kMiB, second_), address);
}

TEST_F(PoolsTest, ExplicitPoolLivesUntilItsLastAllocation) {
  const std::uint64_t before = free_bytes();
  const std::uint64_t own = subject_.value("pool 0");
  const std::uint64_t address = allocate(4096, first_, own);
  EXPECT_EQ(subject_.value(command("attribute", address, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)),
            own);
  subject_.ask(command("set_pool", 0, own));
  const std::uint64_t second = allocate(4096, first_);
  EXPECT_EQ(subject_.value(command("attribute", second, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)), own);
  subject_.ask(command("destroy_pool", own));
  const std::uint64_t third = allocate(4096, first_);
  EXPECT_EQ(subject_.value(command("attribute", third, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)),
            pool_);
  EXPECT_TRUE(subject_.answer(command("alloc_async", 4096, first_, own)).starts_with("error"));
  subject_.ask(command("fill", address, 4096, 1));
  for (const std::uint64_t freed : {address, second, third}) free(freed, first_);
  subject_.ask("sync");
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(summary().allocations, 0u);
}

TEST_F(PoolsTest, PoolGrowsToItsMaximum) {
  const std::uint64_t own = subject_.value(command("pool", 0, 6 * kMiB));
  const std::uint64_t address = allocate(4 * kMiB, first_, own);
  EXPECT_EQ(subject_.answer(command("alloc_async", 4 * kMiB, first_, own)), "error 2");
  free(address, first_);
  EXPECT_EQ(allocate(4 * kMiB, first_, own), address);
}

TEST_F(PoolsTest, UnusedPoolMemoryIsReleasedBeforeItRunsOut) {
  keep_everything();
  const std::uint64_t whole = free_bytes();
  free(allocate(whole / 2, first_), first_);
  subject_.ask("sync");
  EXPECT_LT(free_bytes(), whole);
  EXPECT_NE(subject_.value(command("alloc", whole - 4 * kMiB)), 0u);
}

TEST_F(PoolsTest, StreamsAreWaitedForBeforeMemoryRunsOut) {
  keep_everything();
  const std::uint64_t whole = free_bytes();
  free(allocate(whole / 2, first_), first_);
  const std::uint64_t address = allocate(whole * 3 / 4, first_);
  free(address, first_);
  stall(first_);
  subject_.ask(command("fill_async", address, 4096, 1, first_));
  free(allocate(4096, first_), first_);
  subject_.ask(command("go_on_later", 300));
  EXPECT_TRUE(subject_.answer(command("alloc_async", whole * 4 / 5, second_)).starts_with("ok"));
}

TEST_F(PoolsTest, TrimKeepsTheRequestedAmount) {
  keep_everything();
  free(allocate(40 * kMiB, first_), first_);
  free(allocate(64 * kMiB, first_), first_);
  subject_.ask("sync");
  subject_.ask(command("trim", pool_, 50 * kMiB));
  EXPECT_GE(number(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 50 * kMiB);
  subject_.ask(command("trim", pool_, 0));
  EXPECT_EQ(number(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0u);
}

TEST_F(PoolsTest, GraphAllocationsAreLeftToTheDriver) {
  const std::uint64_t older = allocate(4096, first_);
  subject_.ask(command("capture", first_));
  const std::uint64_t address = allocate(3 * kMiB, first_);
  EXPECT_EQ(subject_.answer(command("free_async", older, first_)), "error 1");
  free(address, first_);
  EXPECT_NE(subject_.value(command("end_capture", first_)), 0u);
  EXPECT_EQ(summary().untracked_bytes, 3 * kMiB);
  free(older, first_);
}

TEST_F(PoolsTest, OtherStreamsAllocateDuringACapture) {
  const std::uint64_t older = allocate(4096, second_);
  subject_.ask(command("capture", first_));
  const std::uint64_t address = allocate(64 * kMiB, second_);
  free(older, second_);
  free(address, second_);
  EXPECT_EQ(allocate(64 * kMiB, second_), address);
  EXPECT_NE(subject_.value(command("end_capture", first_)), 0u);
  EXPECT_EQ(summary().untracked_bytes, 0u);
}

TEST_F(PoolsTest, PoolAccessSurvivesADetach) {
  const std::uint64_t older = allocate(4096, first_);
  EXPECT_EQ(subject_.answer(command("pool_access", pool_, 1, 3)), "ok");
  const std::uint64_t newer = allocate(64 * kMiB, first_);
  gpu::Door door = door_of(subject_);
  detach_and_attach(door);
  subject_.value("context 1");
  for (const std::uint64_t address : {older, newer}) {
    subject_.ask(command("fill", address, 4096, 7));
    sum(address, 4096);
  }
}

TEST_F(PoolsTest, ConcurrentStreamsSurviveTenDetaches) {
  gpu::Door door = door_of(subject_);
  storm_through_ten_detaches(subject_, door, context_, 1);
  subject_.ask("sync");
  const door::Summary told = good(door.hello());
  EXPECT_EQ(told.untracked_bytes, 0u);
  EXPECT_EQ(told.tracked_bytes, 0u);
}

}  // namespace
}  // namespace gcr::test
