// The contexts' stack limits are lowered while VRAM is detached, and nobody can tell.
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

TEST_F(StackLimitsTest, TheyAreLowWhileDetachedAndAsBeforeAfterwards) {
  const std::uint64_t primary = subject_.value("primary 0");
  subject_.ask(command("set_limit", kStackSize, 4096));
  const std::uint64_t second = subject_.value("primary 1");
  subject_.ask(command("set_limit", kStackSize, 8192));
  agent::Door door = door_of(subject_);
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

TEST_F(StackLimitsTest, TheApplicationNeverSeesALowOne) {
  const std::uint64_t before = limit();
  agent::Door door = door_of(subject_);
  good(quiesce(door, kLong, kNoLease));
  good(door.detach());
  ASSERT_EQ(good(door.hello()).lowered_stacks, 1u);
  subject_.send(command("limit", kStackSize));
  good(door.attach({}));
  good(door.resume());
  EXPECT_EQ(std::stoull(subject_.receive().substr(3), nullptr, 0), before);
}

/// Where threads stand still, to set one may take forever.
TEST_F(StackLimitsTest, ContextsOfTheProgramsOwnAndThoseWhoseWaitsBlockStayAsTheyAre) {
  constexpr int kBlockingSync = 4;  // CU_CTX_SCHED_BLOCKING_SYNC
  subject_.ask(command("primary_flags", 0, kBlockingSync));
  subject_.value("context 1");
  agent::Door door = door_of(subject_);
  good(quiesce(door, kLong, kNoLease));
  good(door.detach());
  EXPECT_EQ(good(door.hello()).lowered_stacks, 0u);
  good(door.attach({}));
  good(door.resume());
}

TEST_F(StackLimitsTest, AContextWhoseLimitIsLowestAlreadyStaysAsItIs) {
  subject_.ask(command("set_limit", kStackSize, 16));
  agent::Door door = door_of(subject_);
  good(quiesce(door, kLong, kNoLease));
  good(door.detach());
  EXPECT_EQ(good(door.hello()).lowered_stacks, 0u);
  good(door.attach({}));
  good(door.resume());
  EXPECT_EQ(limit(), 16u);
}

}  // namespace
}  // namespace gcr::test
