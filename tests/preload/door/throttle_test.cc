// An application that is throttled to a share of the time.
#include "migrate-agent/gpu/access/throttle.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/preload/door/door_helpers.h"

namespace gcr::test {
namespace {

using gpu::Throttle;

constexpr std::chrono::milliseconds kHalf{500};

class ThrottleTest : public testing::Test {
 protected:
  void SetUp() override {
    subject_.ask("init");
    context_ = subject_.value("primary 0");
    address_ = subject_.value(command("alloc", 2 * kMiB));
    subject_.ask(command("work", context_, address_));
  }

  std::uint64_t steps() { return subject_.value("worked"); }
  void wait_for_steps(std::uint64_t count) {
    for (const std::uint64_t end = steps() + count; steps() < end;) {
    }
  }
  /// The unit of the times below.
  static constexpr std::chrono::milliseconds kPeriod{100};

  /// Waits until the gate was held for that share of so many further periods.
  static void wait_for_periods(const Throttle& throttle, int count, double share) {
    const auto end = throttle.held().held +
                     std::chrono::duration_cast<std::chrono::nanoseconds>(count * share * kPeriod);
    while (throttle.held().held < end) ::usleep(1000);
  }
  /// How long the next closing holds the gate, or several of them together.
  static std::chrono::nanoseconds held_once(const Throttle& throttle) {
    const auto before = throttle.held().held;
    while (throttle.held().held == before) ::usleep(1000);
    return throttle.held().held - before;
  }

  Subject subject_;
  std::uint64_t context_ = 0;
  std::uint64_t address_ = 0;
};

TEST_F(ThrottleTest, ClosedTimeMatchesTheShare) {
  gpu::Door door = door_of(subject_);
  gpu::Gates gate({{door.pid(), &door}});
  Throttle throttle(gate);
  wait_for_steps(10);
  EXPECT_EQ(throttle.held().held.count(), 0);
  for (const double share : {0.2, 0.6, 0.95}) {
    throttle.set_share(share);
    held_once(throttle);  // may have begun before
    EXPECT_GE(held_once(throttle), Throttle::kWindow * (share / (1 - share)));
    wait_for_steps(1);
  }
  good(throttle.stop());
  EXPECT_EQ(subject_.ask("rest").at(1), 0u) << "calls failed";
}

TEST(ThrottleHeld, IsReportedAsAShareOfTheTime) {
  EXPECT_EQ(Throttle::Held{}.share(), 0);
  EXPECT_EQ((Throttle::Held{.held = kHalf, .elapsed = 2 * kHalf}.share()), 0.5);
}

TEST_F(ThrottleTest, GateIsOpenAndDoorUsableAfterwards) {
  gpu::Door door = door_of(subject_);
  for (const double share : {0.0, 0.5, 7.0}) {
    gpu::Gates gate({{door.pid(), &door}});
    Throttle throttle(gate);
    throttle.set_share(share);
    if (share > 0) wait_for_periods(throttle, 1, 0.5);
    good(throttle.stop());
    good(throttle.stop());
    EXPECT_EQ(good(door.hello()).gate_closed, 0u);
    wait_for_steps(2);
  }
}

TEST_F(ThrottleTest, BusyGpuIsNoError) {
  subject_.ask(command("stall", subject_.value("stream")));
  gpu::Door door = door_of(subject_);
  gpu::Gates gate({{door.pid(), &door}});
  Throttle throttle(gate);
  throttle.set_share(0.5);
  wait_for_periods(throttle, 3, 0.5);
  subject_.ask("go_on");
  wait_for_periods(throttle, 3, 0.5);
  good(throttle.stop());
  wait_for_steps(2);
}

TEST_F(ThrottleTest, ApplicationRunsOnWithoutItsThrottler) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const UniqueFd reading(ready[0]), writing(ready[1]);
  const pid_t throttler = ::fork();
  if (throttler == 0) {
    auto door = gpu::Door::open(subject_.pid());
    if (!door) ::_exit(1);
    gpu::Gates gate({{door->pid(), &*door}});
    Throttle throttle(gate);
    throttle.set_share(1);
    wait_for_periods(throttle, 2, 1);
    [[maybe_unused]] const ssize_t ignored = ::write(writing.get(), "r", 1);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(reading.get(), &byte, 1), 1);
  ASSERT_EQ(::kill(throttler, SIGKILL), 0);
  ASSERT_EQ(::waitpid(throttler, nullptr, 0), throttler);
  wait_for_steps(10);
  gpu::Door door = door_of(subject_);
  EXPECT_EQ(good(door.hello()).gate_closed, 0u);
  EXPECT_EQ(subject_.ask("rest").at(1), 0u);
}

}  // namespace
}  // namespace gcr::test
