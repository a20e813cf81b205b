// Closing the gate of a working application: which calls wait, what prevents it, and what opens it
// again.
#include <gtest/gtest.h>

#include <fstream>

#include "preload/door_protocol.h"
#include "tests/preload/door/door_helpers.h"

namespace gcr::test {
namespace {

constexpr std::chrono::milliseconds kShort{50};

class GateClosingTest : public testing::Test {
 protected:
  void SetUp() override {
    subject_.ask("init");
    context_ = subject_.value("primary 0");
    address_ = subject_.value(command("alloc", 2 * kMiB));
  }

  void start_work() { subject_.ask(command("work", context_, address_)); }
  std::uint64_t steps() { return subject_.value("worked"); }
  void wait_for_steps() {
    for (const std::uint64_t before = steps(); steps() < before + 2;) {
    }
  }
  void expect_timeout(gpu::Door& door, const std::string& reason) {
    const Status closed = quiesce(door, kShort, kNoLease);
    ASSERT_FALSE(closed);
    EXPECT_EQ(closed.error().code(), Code::kTimeout);
    EXPECT_NE(closed.error().message().find(reason), std::string::npos) << closed.error().message();
    EXPECT_EQ(good(door.hello()).gate_closed, 0u);
  }

  Subject subject_;
  std::uint64_t context_ = 0;
  std::uint64_t address_ = 0;
};

TEST_F(GateClosingTest, NoWorkRunsWhileTheGateIsClosed) {
  start_work();
  gpu::Door door = door_of(subject_);
  for (int cycle = 0; cycle < 10; ++cycle) {
    wait_for_steps();
    good(quiesce(door, kLong, kNoLease));
    EXPECT_EQ(good(door.hello()).gated_calls_in_flight, 0u);
    // A step that was running may still be counted; no later one is.
    std::uint64_t last = steps();
    const std::uint64_t limit = last + 1;
    for (int look = 0; look < 50; ++look) last = steps();
    EXPECT_LE(last, limit);
    good(door.resume());
  }
  wait_for_steps();
  EXPECT_EQ(subject_.ask("rest").at(1), 0u);
}

TEST_F(GateClosingTest, ClosingTwiceIsAllowed) {
  gpu::Door door = door_of(subject_);
  good(quiesce(door, kLong, kNoLease));
  good(quiesce(door, kLong, kNoLease));
  good(door.resume());
  EXPECT_EQ(good(door.hello()).gate_closed, 0u);
}

TEST_F(GateClosingTest, CaptureKeepsItOpen) {
  const std::uint64_t stream = subject_.value("stream");
  subject_.ask(command("capture", stream));
  gpu::Door door = door_of(subject_);
  EXPECT_EQ(good(door.hello()).blockers, door::kStreamCapturing);
  expect_timeout(door, "a stream is being captured");
  EXPECT_NE(subject_.value(command("end_capture", stream)), 0u) << "the capture was disturbed";
  good(quiesce(door, kLong, kNoLease));
  good(door.resume());
}

TEST_F(GateClosingTest, BusyGpuKeepsItOpen) {
  subject_.ask(command("stall", subject_.value("stream")));
  gpu::Door door = door_of(subject_);
  expect_timeout(door, "work on its GPUs did not finish");
  expect_timeout(door, "work on its GPUs did not finish");
  subject_.ask("go_on");
  good(quiesce(door, kLong, kNoLease));
  good(door.resume());
}

TEST_F(GateClosingTest, BlockedCallKeepsItOpen) {
  subject_.ask("stall 0");
  subject_.ask(command("stuck", context_, address_));
  gpu::Door door = door_of(subject_);
  while (good(door.hello()).gated_calls_in_flight == 0) {
  }
  expect_timeout(door, "CUDA calls did not return");
  subject_.ask("go_on");
  subject_.ask(command("unstuck", address_));
  good(quiesce(door, kLong, kNoLease));
  good(door.resume());
}

TEST_F(GateClosingTest, LeaseOpensItWithoutTheAgent) {
  start_work();
  wait_for_steps();
  {
    gpu::Door door = door_of(subject_);
    good(quiesce(door, kLong, kShort));
  }
  wait_for_steps();
  gpu::Door door = door_of(subject_);
  EXPECT_EQ(good(door.hello()).gate_closed, 0u);
  subject_.ask("rest");
}

TEST_F(GateClosingTest, NoLeaseOpensItOnceVramIsDetached) {
  start_work();
  wait_for_steps();
  Held held;
  {
    gpu::Door door = door_of(subject_);
    held = take_over(door);
    good(quiesce(door, kLong, std::chrono::seconds(1)));
    good(door.detach());
  }
  gpu::Door next = door_of(subject_);
  good(next.attach(std::move(held)));
  EXPECT_EQ(good(next.hello()).gate_closed, 1u);
  good(next.resume());
  wait_for_steps();
  EXPECT_EQ(subject_.ask("rest").at(1), 0u);
}

TEST_F(GateClosingTest, ForkWaitsUntilItOpens) {
  gpu::Door door = door_of(subject_);
  good(quiesce(door, kLong, kNoLease));
  subject_.send("fork");
  const std::string path = "/proc/" + std::to_string(subject_.pid()) + "/syscall";
  std::string call;
  while (call != "202") std::ifstream(path) >> call;  // futex
  good(door.resume());
  EXPECT_TRUE(subject_.receive().starts_with("ok"));
}

}  // namespace
}  // namespace gcr::test
