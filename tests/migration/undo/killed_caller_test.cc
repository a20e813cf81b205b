// The caller of the driver's checkpoint functions is killed in the middle of a call: the process
// survives, its state is one of the documented ones, and another caller continues from it.
#include <gtest/gtest.h>
#include <poll.h>

#include <iostream>

#include "migrate-agent/gpu/device/cuda/driver.h"
#include "tests/migration/undo/processes.h"

namespace gcr::undo::test {
namespace {

using Clock = std::chrono::steady_clock;
using State = device::Control::State;

const char* name(State state) {
  switch (state) {
    case State::kRunning:
      return "running";
    case State::kLocked:
      return "locked";
    case State::kCheckpointed:
      return "checkpointed";
    default:
      return "failed";
  }
}

long milliseconds_since(Clock::time_point start) {
  return std::chrono::duration_cast<Milliseconds>(Clock::now() - start).count();
}

int number_from(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

class KilledCaller : public testing::Test {
 protected:
  /// All VRAM of the program belongs to the driver, so that calls take time.
  Program::Options options() {
    const char* vram = std::getenv("GCR_TEST_VRAM");
    return {.preload = false, .vram = vram != nullptr ? vram : "64M"};
  }

  /// Brings the process to this state by undisturbed calls.
  void prepare(State wanted) {
    if (wanted == State::kRunning) return;
    ASSERT_TRUE(control_->lock(std::chrono::seconds(30)));
    if (wanted == State::kCheckpointed) {
      ASSERT_TRUE(control_->checkpoint());
    }
  }

  /// Kills a caller `delay` after it has begun, then watches the state.
  void kill_in(const std::string& call, Milliseconds delay) {
    Worker caller({"call", std::to_string(program_.pid()), call});
    ASSERT_TRUE(caller.wait_for(call));
    ::poll(nullptr, 0, static_cast<int>(delay.count()));
    caller.kill();
    std::cout << call << ", killed after " << delay.count() << " ms (" << caller.last() << "):";
    const auto start = Clock::now();
    State last = State::kInvalid;
    const auto watch = Milliseconds(number_from("GCR_TEST_WATCH_MS", 100));
    while (Clock::now() - start < watch) {
      const auto asked = Clock::now();
      const auto state = control_->state();
      if (!state) {
        std::cout << " " << milliseconds_since(start) << " ms " << state.error().message();
      } else if (*state != last) {
        std::cout << " " << milliseconds_since(start) << " ms " << name(*state) << " (asked for "
                  << milliseconds_since(asked) << " ms)";
        last = *state;
      }
      ::poll(nullptr, 0, 5);
    }
    std::cout << std::endl;
  }

  void expect_progress() {
    const auto start = Clock::now();
    for (;;) {
      const auto state = control_->state();
      ASSERT_TRUE(state) << state.error().message();
      if (*state == State::kRunning) break;
      ASSERT_NE(*state, State::kFailed);
      const Status step = *state == State::kLocked ? control_->unlock() : control_->restore({});
      std::cout << "  from " << name(*state) << ": " << milliseconds_since(start) << " ms "
                << (step ? "done" : step.error().message()) << std::endl;
      if (!step) ::poll(nullptr, 0, 100);
      ASSERT_LT(milliseconds_since(start), 60000);
    }
    program_.expect_progress();
  }

  void kill_at_random(const std::string& call, State before, int longest_ms) {
    const int times = number_from("GCR_TEST_KILLS", 5);
    for (int i = 0; i < times && !HasFailure(); ++i) {
      prepare(before);
      if (HasFatalFailure()) return;
      kill_in(call, Milliseconds(longest_ms * i / times));
      if (HasFatalFailure()) return;
      expect_progress();
    }
  }

  Directory directory_;
  Program program_{directory_.path(), options()};
  std::shared_ptr<const device::Driver> driver_ = device::cuda::load().value();
  std::unique_ptr<device::Control> control_ = driver_->control(program_.pid());
};

TEST_F(KilledCaller, DuringLockTheProcessCanResume) {
  kill_at_random("lock", State::kRunning, number_from("GCR_TEST_LOCK_MS", 8));
}

TEST_F(KilledCaller, DuringCheckpointTheProcessCanResume) {
  kill_at_random("checkpoint", State::kLocked, number_from("GCR_TEST_CHECKPOINT_MS", 50));
}

TEST_F(KilledCaller, DuringRestoreTheProcessCanResume) {
  kill_at_random("restore", State::kCheckpointed, number_from("GCR_TEST_RESTORE_MS", 50));
}

TEST_F(KilledCaller, DuringUnlockTheProcessCanResume) {
  kill_at_random("unlock", State::kLocked, number_from("GCR_TEST_UNLOCK_MS", 8));
}

}  // namespace
}  // namespace gcr::undo::test
