// Calls past the gate, as the door reports them, and the refusal of a detach.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "migrate-agent/gpu/access/door/sentences.h"
#include "tests/preload/door/door_helpers.h"

namespace gcr::test {
namespace {

using testing::HasSubstr;

class PastGateTest : public PlainMemoryTest {
 protected:
  void SetUp() override {
    if (std::getenv("GCR_TEST_REAL_GPU") != nullptr) GTEST_SKIP() << "two drivers in one process";
    PlainMemoryTest::SetUp();
    memory_ = allocate(4 * kMiB);
    fill(memory_, 4 * kMiB, 7);
    sum_ = sum(memory_, 4 * kMiB);
  }
  std::uint64_t memory_ = 0;
  std::uint64_t sum_ = 0;
};

TEST_F(PastGateTest, SecondDriverIsNamed) {
  gpu::Door door = door_of(subject_);
  EXPECT_EQ(good(door.read_state(kLong)).past_gate, "");
  detach_and_attach(door);
  subject_.ask("namespace");
  EXPECT_THAT(good(door.read_state(kLong)).past_gate, HasSubstr("second copy"));
  EXPECT_NE(good(door.hello()).blockers & door::kPastGate, 0u);
}

TEST_F(PastGateTest, DriverLoadedBehindTheGatePreventsADetach) {
  gpu::Door door = door_of(subject_);
  const Held held = take_over(door);
  good(quiesce(door, kLong, kNoLease));
  subject_.ask("namespace");
  const Status detached = door.detach();
  ASSERT_FALSE(detached);
  EXPECT_EQ(detached.error().code(), Code::kRefused);
  EXPECT_THAT(detached.error().message(), HasSubstr("second copy"));
  EXPECT_EQ(good(door.hello()).detached, 0u);
  good(door.resume());
  EXPECT_EQ(sum(memory_, 4 * kMiB), sum_);
}

TEST(PastGateTexts, ArePrintableAndBounded) {
  door::DoorReply reply{};
  EXPECT_EQ(gpu::past_gate_in_words(reply), "");
  reply.summary.blockers = door::kPastGate;
  EXPECT_NE(gpu::past_gate_in_words(reply), "");
  std::memset(reply.entries, '\n', sizeof(reply.entries));
  EXPECT_EQ(gpu::past_gate_in_words(reply), std::string(sizeof(reply.past_gate), '?'));
}

}  // namespace
}  // namespace gcr::test
