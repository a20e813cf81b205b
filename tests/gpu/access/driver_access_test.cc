// The contract of GpuAccess (migrate-agent/gpu/access/gpu_access.h), through the driver only.
#include "migrate-agent/gpu/access/driver/driver_access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "migrate-agent/gpu/access/gates.h"
#include "migrate-agent/gpu/device/cuda/driver.h"
#include "tests/softgpu/subjects.h"

namespace gcr::gpu {
namespace {

using device::Control;
using softgpu::test::kOk;
using std::chrono::milliseconds;
using testing::HasSubstr;

class ThroughTheDriver : public testing::Test {
 protected:
  ThroughTheDriver() {
    process_.ask("context 0");
    buffer_ = process_.value("alloc 4194304");
    EXPECT_EQ(process_.ask("fill " + buffer_ + " 7"), kOk);
  }

  Control::State state() const { return control_->state().value(); }
  Held hold() { return access_.hold(milliseconds(1), milliseconds(0)).value(); }

  softgpu::test::Machine machine_{{{softgpu::test::kGpuA, "64M"}}};
  softgpu::test::Subject process_{machine_};
  std::shared_ptr<const device::Driver> driver_ = device::cuda::load().value();
  std::unique_ptr<Control> control_ = driver_->control(process_.pid());
  DriverAccess driver_access_{process_.pid(), *driver_};
  GpuAccess& access_ = driver_access_;
  std::string buffer_;
};

TEST_F(ThroughTheDriver, HoldLocksAndResumeUnlocks) {
  EXPECT_TRUE(access_.is_driver_alone());
  EXPECT_FALSE(access_.read_state().value().quiet);
  for (int time = 0; time < 2; ++time) {
    EXPECT_TRUE(hold().quiet);
    EXPECT_EQ(hold().waiting, 0u);
    EXPECT_TRUE(access_.step(milliseconds(1)).value().quiet);
    EXPECT_TRUE(access_.read_state().value().quiet);
    EXPECT_EQ(state(), Control::State::kLocked);
    process_.send("holds " + buffer_ + " 7");
    EXPECT_FALSE(process_.has_output()) << "the call is delayed";
    ASSERT_TRUE(access_.resume());
    EXPECT_EQ(process_.receive(), kOk + " 1");
    EXPECT_EQ(state(), Control::State::kRunning);
    EXPECT_TRUE(access_.resume()) << "it runs already";
  }
}

TEST_F(ThroughTheDriver, CheckpointedProcessIsQuietAndNotResumed) {
  ASSERT_TRUE(hold().quiet);
  EXPECT_TRUE(access_.detach());
  ASSERT_TRUE(control_->checkpoint());
  EXPECT_TRUE(access_.read_state().value().quiet);
  EXPECT_TRUE(hold().quiet);
  const Status refused = access_.resume();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kRefused);
  EXPECT_EQ(state(), Control::State::kCheckpointed);
}

TEST_F(ThroughTheDriver, HasNoDescriptorsToMoveOrPagesToDrop) {
  const AccessState state = access_.read_state().value();
  EXPECT_EQ(state.thread, 0);
  EXPECT_FALSE(state.detached);
  EXPECT_THAT(access_.allocations().value(), testing::IsEmpty());
  EXPECT_THAT(access_.take({}).value(), testing::IsEmpty());
  EXPECT_EQ(access_.take(std::vector<std::uint64_t>{1}).error().code(), Code::kNotFound);
  EXPECT_TRUE(access_.detach());
  EXPECT_TRUE(access_.attach({}));
  std::vector<std::pair<std::uint64_t, UniqueFd>> given;
  given.emplace_back(1, UniqueFd());
  EXPECT_EQ(access_.attach(std::move(given)).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(access_.drop_pages({}).error().code(), Code::kUnsupported);
  EXPECT_EQ(access_.use_huge_pages({}).error().code(), Code::kUnsupported);
}

TEST_F(ThroughTheDriver, UnfinishedWorkKeepsTheGateOpen) {
  ASSERT_EQ(process_.ask("block"), kOk);
  Gates gates({{process_.pid(), &access_}});
  const Status closed = gates.quiesce(milliseconds(100), milliseconds(0));
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().code(), Code::kTimeout);
  EXPECT_THAT(closed.error().message(), HasSubstr("work on its GPUs did not finish"));
  EXPECT_EQ(state(), Control::State::kRunning);
  ASSERT_EQ(process_.ask("release"), kOk);
  EXPECT_TRUE(gates.quiesce(std::chrono::seconds(10), milliseconds(0)));
  EXPECT_EQ(state(), Control::State::kLocked);
  EXPECT_TRUE(gates.resume());
  EXPECT_EQ(process_.ask("holds " + buffer_ + " 7"), kOk + " 1");
}

TEST_F(ThroughTheDriver, ProcessLockedByAnotherIsNotHeld) {
  ASSERT_TRUE(control_->lock(std::chrono::seconds(10)));
  EXPECT_EQ(access_.hold(milliseconds(1), milliseconds(0)).error().code(), Code::kRefused);
}

TEST_F(ThroughTheDriver, StoppedProcessIsNotQueried) {
  process_.signal(SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(process_.pid(), &status, WUNTRACED), process_.pid());
  EXPECT_EQ(access_.read_state().error().code(), Code::kUnavailable);
  EXPECT_EQ(access_.hold(milliseconds(1), milliseconds(0)).error().code(), Code::kUnavailable);
  EXPECT_EQ(access_.resume().error().code(), Code::kUnavailable);
  process_.signal(SIGCONT);
  EXPECT_TRUE(access_.hold(milliseconds(1), milliseconds(0)).value().quiet);
}

TEST_F(ThroughTheDriver, EndedProcessIsAnError) {
  process_.signal(SIGKILL);
  process_.wait();
  EXPECT_FALSE(access_.read_state());
  EXPECT_FALSE(access_.hold(milliseconds(1), milliseconds(0)));
  EXPECT_FALSE(access_.resume());
}

}  // namespace
}  // namespace gcr::gpu
