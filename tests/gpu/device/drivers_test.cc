// Several drivers behind one interface, and the error of a host without any. The drivers are fakes.
#include "migrate-agent/gpu/device/drivers/drivers.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace gcr::device {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Log = std::vector<std::string>;

Uuid uuid(std::uint8_t last) {
  Uuid made;
  made.bytes.back() = last;
  return made;
}

/// Records the call, or fails with the configured error.
class FakeControl final : public Control {
 public:
  FakeControl(std::string name, Log& log, State state, std::optional<Error> error)
      : name_(std::move(name)), log_(log), state_(state), error_(std::move(error)) {}

  bool goes_with_dump() const override { return name_ == "amd"; }
  Result<State> state() const override {
    if (error_) return *error_;
    return state_;
  }
  Status lock(std::chrono::milliseconds) const override { return record("lock"); }
  Status checkpoint() const override { return record("checkpoint"); }
  Status restore(const std::vector<GpuPair>& pairs) const override {
    std::string call = "restore";
    for (const GpuPair& pair : pairs) call += fmt::format(" {}", pair.to.bytes.back());
    return record(call);
  }
  Status unlock() const override { return record("unlock"); }
  Result<pid_t> restore_thread() const override {
    if (error_) return *error_;
    return name_ == "nvidia" ? pid_t{17} : pid_t{0};
  }

 private:
  Status record(const std::string& call) const {
    if (error_) return *error_;
    log_.push_back(name_ + " " + call);
    return {};
  }

  const std::string name_;
  Log& log_;
  const State state_;
  const std::optional<Error> error_;
};

class FakeDriver final : public Driver {
 public:
  FakeDriver(std::string name, Log& log, const std::vector<std::uint8_t>& gpus)
      : name_(std::move(name)), log_(log) {
    for (const std::uint8_t gpu : gpus) gpus_.push_back({.uuid = uuid(gpu), .name = name_});
  }

  const std::vector<GpuInfo>& gpus() const override { return gpus_; }
  Result<std::shared_ptr<Gpu>> open(const GpuInfo& gpu) const override {
    return Error(Code::kUnavailable, fmt::format("{} opens {}", name_, gpu.uuid.bytes.back()));
  }
  std::unique_ptr<Control> control(pid_t) const override {
    return std::make_unique<FakeControl>(name_, log_, state, error);
  }
  bool is_in(pid_t) const override { return in; }

  bool in = true;
  Control::State state = Control::State::kRunning;
  std::optional<Error> error;

 private:
  const std::string name_;
  Log& log_;
  std::vector<GpuInfo> gpus_;
};

class TwoDrivers : public testing::Test {
 protected:
  std::unique_ptr<Control> control() const { return both_->control(1); }

  Log log_;
  const std::shared_ptr<FakeDriver> nvidia_ =
      std::make_shared<FakeDriver>("nvidia", log_, std::vector<std::uint8_t>{1, 2});
  const std::shared_ptr<FakeDriver> amd_ =
      std::make_shared<FakeDriver>("amd", log_, std::vector<std::uint8_t>{3});
  const std::shared_ptr<const Driver> both_ = join_drivers({nvidia_, amd_}).value();
};

TEST_F(TwoDrivers, GpuIsFoundInEitherDriver) {
  ASSERT_EQ(both_->gpus().size(), 3u);
  Gpus gpus(both_);
  EXPECT_EQ(gpus.on(uuid(2)).error().message(), "nvidia opens 2");
  EXPECT_EQ(gpus.on(uuid(3)).error().message(), "amd opens 3");
  EXPECT_EQ(gpus.on(uuid(4)).error().code(), Code::kNotFound);
}

TEST_F(TwoDrivers, SingleDriverIsUsedDirectly) {
  const Error none(Code::kNotFound, "no driver");
  EXPECT_EQ(join_drivers({none, amd_}).value(), amd_);
  EXPECT_EQ(join_drivers({nvidia_, none}).value(), nvidia_);
  EXPECT_EQ(join_drivers({Error(Code::kUnsupported, "too old"), amd_}).value(), amd_);
}

TEST_F(TwoDrivers, ProcessUsingBothIsControlledThroughBoth) {
  const auto both = control();
  EXPECT_TRUE(both->goes_with_dump());
  EXPECT_EQ(both->state().value(), Control::State::kRunning);
  EXPECT_EQ(both->restore_thread().value(), 17);
  EXPECT_TRUE(both->lock(std::chrono::seconds(1)));
  EXPECT_TRUE(both->checkpoint());
  EXPECT_TRUE(both->restore({{uuid(9), uuid(2)}, {uuid(8), uuid(3)}, {uuid(7), uuid(1)}}));
  EXPECT_TRUE(both->unlock());
  EXPECT_THAT(log_,
              ElementsAre("nvidia lock", "amd lock", "nvidia checkpoint", "amd checkpoint",
                          "nvidia restore 2 1", "amd restore 3", "nvidia unlock", "amd unlock"));
  nvidia_->state = Control::State::kCheckpointed;
  EXPECT_EQ(control()->state().value(), Control::State::kCheckpointed);
}

TEST_F(TwoDrivers, DriverNotUsedByTheProcessIsSkipped) {
  nvidia_->error = Error(Code::kNotFound, "not initialised");
  EXPECT_EQ(control()->state().value(), Control::State::kRunning);
  EXPECT_EQ(control()->restore_thread().value(), 0);
  EXPECT_TRUE(control()->lock({}));
  amd_->in = false;
  EXPECT_FALSE(control()->goes_with_dump());
  EXPECT_EQ(control()->state().error().code(), Code::kNotFound);
  EXPECT_EQ(control()->lock({}).error().code(), Code::kNotFound);
  EXPECT_THAT(log_, ElementsAre("amd lock"));
}

TEST_F(TwoDrivers, ErrorOfEitherDriverIsReturned) {
  nvidia_->error = Error(Code::kTimeout, "work goes on");
  EXPECT_EQ(control()->state().error().message(), "work goes on");
  EXPECT_EQ(control()->lock({}).error().message(), "work goes on");
  EXPECT_THAT(log_, IsEmpty());
}

TEST(NoDriver, HostWithoutDriversNamesEach) {
  const auto none =
      join_drivers({Error(Code::kNotFound, "no CUDA driver"), Error(Code::kNotFound, "no HIP")});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::kNotFound);
  EXPECT_EQ(none.error().message(), "no CUDA driver; no HIP");
}

TEST(NoDriver, BrokenDriverIsNamedAsTheReason) {
  const auto none = join_drivers(
      {Error(Code::kNotFound, "no CUDA driver"), Error(Code::kUnsupported, "HIP is too old")});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace gcr::device
