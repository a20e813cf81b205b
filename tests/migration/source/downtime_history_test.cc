// The downtimes that an agent records, and its estimates from them.
#include "migrate-agent/migration/engine/downtime_history.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <fstream>
#include <thread>
#include <vector>

namespace gcr::migration {
namespace {

namespace fs = std::filesystem;

class DowntimeHistory : public testing::Test {
 protected:
  DowntimeHistory() { fs::create_directories(folder_); }
  ~DowntimeHistory() override { fs::remove_all(folder_); }

  void remember(const std::string& kind, double control_ms, double rest_ms, bool prefill = true) {
    const Status remembered = remember_downtime(folder_, kind, prefill, {control_ms, rest_ms});
    ASSERT_TRUE(remembered) << remembered.error().message();
  }
  SteadyDowntime expect(const std::string& kind, bool prefill = true) const {
    return expect_downtime(folder_, kind, prefill);
  }
  fs::path file() const { return folder_ / "downtimes"; }

  fs::path folder_ = testing::TempDir() + "/gcr-downtimes-" + std::to_string(::getpid());
};

TEST_F(DowntimeHistory, HasNoEstimateBeforeTheFirstMeasurement) {
  const SteadyDowntime steady = expect("counter");
  EXPECT_TRUE(steady.is_least);
  EXPECT_EQ(steady.with_last_round_ms(70), 70);
}

TEST_F(DowntimeHistory, EstimateIsTheMedianOfTheLast) {
  for (const double ms : {900.0, 100.0, 300.0, 200.0, 250.0, 150.0}) {
    remember("counter", ms, ms / 10);  // six, of which five are kept
  }
  const SteadyDowntime steady = expect("counter");
  EXPECT_FALSE(steady.is_least);
  EXPECT_EQ(steady.control_ms, 200);
  EXPECT_EQ(steady.rest_ms, 20);
}

TEST_F(DowntimeHistory, SlowLastRoundCountsInsteadOfTheDump) {
  const SteadyDowntime steady{.control_ms = 100, .rest_ms = 40, .is_least = false};
  EXPECT_EQ(steady.with_last_round_ms(0), 140);
  EXPECT_EQ(steady.with_last_round_ms(100), 140);
  EXPECT_EQ(steady.with_last_round_ms(250), 290);
}

TEST_F(DowntimeHistory, OtherProgramsGiveALowerBound) {
  remember("python3 train.py", 800, 300);
  remember("counter", 100, 50);
  remember("stencil", 200, 50);
  const SteadyDowntime steady = expect("scribbler");
  EXPECT_TRUE(steady.is_least);
  EXPECT_EQ(steady.with_last_round_ms(0), 150);
}

TEST_F(DowntimeHistory, PrefillIsRecordedSeparately) {
  remember("counter", 100, 50, true);
  remember("counter", 100, 900, false);
  EXPECT_EQ(expect("counter", true).rest_ms, 50);
  EXPECT_EQ(expect("counter", false).rest_ms, 900);
}

TEST_F(DowntimeHistory, DamagedFileIsReplaced) {
  for (const std::string& content :
       {std::string("\xff\xff\xff\xff"), std::string(), std::string(1 << 20, 'x')}) {
    std::ofstream(file(), std::ios::binary) << content;
    EXPECT_TRUE(expect("counter").is_least);
    remember("counter", 100, 50);
    EXPECT_EQ(expect("counter").control_ms, 100);
  }
}

TEST_F(DowntimeHistory, ImpossibleTimesAreIgnored) {
  remember("counter", 100, 50);
  for (const double ms : {-1.0, 1e12, std::nan(""), HUGE_VAL}) {
    EXPECT_FALSE(remember_downtime(folder_, "counter", true, {ms, 1}));
    EXPECT_FALSE(remember_downtime(folder_, "counter", true, {1, ms}));
  }
  EXPECT_EQ(expect("counter").control_ms, 100);
}

TEST_F(DowntimeHistory, ConcurrentWritersLoseNothing) {
  std::vector<std::thread> workers;
  for (int i = 0; i < 4; ++i) {
    workers.emplace_back([this, i] {
      for (int n = 0; n < 3; ++n) remember("kind " + std::to_string(i), 10 + i, 1);
    });
  }
  for (std::thread& worker : workers) worker.join();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(expect("kind " + std::to_string(i)).control_ms, 10 + i);
  }
}

TEST_F(DowntimeHistory, FileStaysSmallAndOwnedByRoot) {
  for (int i = 0; i < 300; ++i) remember("kind " + std::to_string(i), 1, 1);
  EXPECT_LT(fs::file_size(file()), 64U * 1024);
  EXPECT_TRUE(expect("kind 0").is_least);
  EXPECT_FALSE(expect("kind 299").is_least);
  struct stat info {};
  ASSERT_EQ(::stat(file().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(DowntimeHistory, FailedWriteChangesNothing) {
  EXPECT_FALSE(remember_downtime(folder_ / "nowhere", "counter", true, {1, 1}));
  EXPECT_TRUE(expect_downtime(folder_ / "nowhere", "counter", true).is_least);
}

TEST(KindOfProgram, IsTheProgramAndItsScript) {
  EXPECT_EQ(kind_of_program("/usr/bin/python3 /srv/serve.py --port 1"), "python3 serve.py");
  EXPECT_EQ(kind_of_program("./counter --port 7500"), "counter");
  EXPECT_EQ(kind_of_program("/opt/app"), "app");
  EXPECT_EQ(kind_of_program(""), "");
  EXPECT_EQ(kind_of_program(std::string(500, 'x')).size(), 100U);
}

}  // namespace
}  // namespace gcr::migration
