// The contexts' stack limits are lowered while VRAM is detached, invisibly.
#include <gtest/gtest.h>

#include "tests/preload/door/door_helpers.h"

namespace gcr::test {
namespace {

constexpr int kStackSize = 0;  // CU_LIMIT_STACK_SIZE

class StackLimitsTest : public testing::Test {
 protected:
  void SetUp() override {
    subject_.ask("init");
    subject_.ask("primary 0");
  }
  std::uint64_t limit() { return subject_.value(command("limit", kStackSize)); }

  Subject subject_;
};

TEST_F(StackLimitsTest, AreLoweredOnlyWhileDetached) {
  const std::uint64_t primary = subject_.value("primary 0");
  subject_.ask(command("set_limit", kStackSize, 4096));
  const std::uint64_t second = subject_.value("primary 1");
  subject_.ask(command("set_limit", kStackSize, 8192));
  gpu::Door door = door_of(subject_);
  for (int cycle = 0; cycle < 3; ++cycle) {
    EXPECT_EQ(good(door.hello()).lowered_stacks, 0u);
    Held held = take_over(door);
    good(quiesce(door, kLong, kNoLease));
    good(door.detach());
    EXPECT_EQ(good(door.hello()).lowered_stacks, 2u);
    good(door.attach(std::move(held)));
    EXPECT_EQ(good(door.hello()).lowered_stacks, 0u);
    good(door.resume());
    subject_.ask(command("current", second));
    EXPECT_EQ(limit(), 8192u);
    subject_.ask(command("current", primary));
    EXPECT_EQ(limit(), 4096u);
  }
}

TEST_F(StackLimitsTest, ApplicationNeverSeesALoweredLimit) {
  const std::uint64_t before = limit();
  gpu::Door door = door_of(subject_);
  good(quiesce(door, kLong, kNoLease));
  good(door.detach());
  ASSERT_EQ(good(door.hello()).lowered_stacks, 1u);
  subject_.send(command("limit", kStackSize));
  good(door.attach({}));
  good(door.resume());
  EXPECT_EQ(std::stoull(subject_.receive().substr(3), nullptr, 0), before);
}

/// After a host function that waits for the program's work in another stream.
TEST_F(StackLimitsTest, NextLaunchIsNotDelayed) {
  constexpr int kMilliseconds = 30'000;
  const std::uint64_t memory = subject_.value("alloc 2097152");
  const std::uint64_t waiting = subject_.value("stream");
  const std::uint64_t other = subject_.value("stream");
  gpu::Door door = door_of(subject_);
  Held held = take_over(door);
  good(quiesce(door, kLong, kNoLease));
  good(door.detach());
  good(door.attach(std::move(held)));
  good(door.resume());
  subject_.ask(command("stall", waiting));
  subject_.ask(command("fill_rows", memory, 1024, 1, 512, 512, waiting));
  subject_.ask(command("go_on_later", kMilliseconds));
  subject_.ask(command("fill_async", memory + 1048576, 4096, 2, other));
  subject_.ask(command("sync_stream", other));
  EXPECT_EQ(subject_.value("stalled"), 1u);
  subject_.ask("go_on");
  subject_.ask(command("sync_stream", waiting));
}

/// While threads are stopped, setting one may take forever.
TEST_F(StackLimitsTest, ExplicitAndBlockingContextsAreLeftAlone) {
  constexpr int kBlockingSync = 4;  // CU_CTX_SCHED_BLOCKING_SYNC
  subject_.ask(command("primary_flags", 0, kBlockingSync));
  subject_.value("context 1");
  gpu::Door door = door_of(subject_);
  good(quiesce(door, kLong, kNoLease));
  good(door.detach());
  EXPECT_EQ(good(door.hello()).lowered_stacks, 0u);
  good(door.attach({}));
  good(door.resume());
}

TEST_F(StackLimitsTest, LowestLimitIsLeftAlone) {
  subject_.ask(command("set_limit", kStackSize, 16));
  gpu::Door door = door_of(subject_);
  good(quiesce(door, kLong, kNoLease));
  good(door.detach());
  EXPECT_EQ(good(door.hello()).lowered_stacks, 0u);
  good(door.attach({}));
  good(door.resume());
  EXPECT_EQ(limit(), 16u);
}

}  // namespace
}  // namespace gcr::test
