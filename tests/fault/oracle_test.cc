// The oracle accepts one undisturbed copy and nothing else; a campaign's plan is determined by its
// seed.
#include "tests/fault/oracle.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/apps/ticker.h"
#include "tests/fault/campaign.h"
#include "tests/fault/matrix.h"

namespace gcr::fault::test {
namespace {

std::string line_of(std::uint64_t step) {
  return fmt::format("{0} {0} {0} {1:016x}\n", step, apps::ticker_checksum(step));
}

class OracleTest : public testing::Test {
 protected:
  OracleTest() : path_(fmt::format("/tmp/gcr-oracle-{}", ::getpid())) {
    std::ofstream(path_, std::ios::trunc).flush();
  }
  ~OracleTest() override { std::filesystem::remove(path_); }

  void append(const std::string& text) { std::ofstream(path_, std::ios::app) << text; }

  std::string path_;
};

TEST_F(OracleTest, AcceptsConsecutiveSteps) {
  Oracle oracle(path_, ticker());
  EXPECT_EQ(oracle.read_new_lines(), 0);
  append(line_of(1) + line_of(2) + line_of(3).substr(0, 4));
  EXPECT_EQ(oracle.read_new_lines(), 2);
  append(line_of(3).substr(4));
  EXPECT_EQ(oracle.read_new_lines(), 3);
  EXPECT_EQ(oracle.complaint(), "");
}

TEST_F(OracleTest, FindsARepeatedStep) {
  append(line_of(1) + line_of(2) + line_of(2));
  Oracle oracle(path_, ticker());
  oracle.read_new_lines();
  EXPECT_NE(oracle.complaint(), "");
}

TEST_F(OracleTest, FindsALostStep) {
  append(line_of(1) + line_of(3));
  Oracle oracle(path_, ticker());
  oracle.read_new_lines();
  EXPECT_NE(oracle.complaint(), "");
}

TEST_F(OracleTest, FindsOutdatedVramAndAWrongChecksum) {
  for (const std::string& line :
       {fmt::format("2 1 2 {:016x}\n", apps::ticker_checksum(2)),
        fmt::format("2 2 1 {:016x}\n", apps::ticker_checksum(2)),
        fmt::format("2 2 2 {:016x}\n", apps::ticker_checksum(2) ^ 1), std::string("2\n")}) {
    std::filesystem::resize_file(path_, 0);
    append(line_of(1) + line);
    Oracle oracle(path_, ticker());
    EXPECT_EQ(oracle.read_new_lines(), 1);
    EXPECT_NE(oracle.complaint(), "") << line;
  }
}

TEST_F(OracleTest, AcceptsOnlyLinesOfARingAndItsFinalError) {
  const auto next = ring().lines();
  append(next() + "\n");
  append(next() + "\n");
  Oracle oracle(path_, ring());
  EXPECT_EQ(oracle.read_new_lines(), 2);
  append("error: rank 1 ended by signal 9\n");
  EXPECT_EQ(oracle.read_new_lines(), 2);
  EXPECT_EQ(oracle.complaint(), "");
  EXPECT_EQ(oracle.final_error(), "error: rank 1 ended by signal 9");
  (void)next();
  append(next() + "\n");
  EXPECT_EQ(oracle.read_new_lines(), 2);
  EXPECT_NE(oracle.complaint(), "") << "a line was lost";
}

TEST(Campaign, IsDeterminedByItsSeed) {
  const auto plan = campaign(7, 50, Milliseconds(500));
  const auto longer = campaign(7, 80, Milliseconds(500));
  const auto another = campaign(8, 50, Milliseconds(500));
  ASSERT_EQ(plan.size(), 50);
  std::size_t different = 0;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    EXPECT_EQ(plan[i].describe(), longer[i].describe());
    different += plan[i].describe() != another[i].describe() ? 1 : 0;
  }
  EXPECT_GT(different, 25);
}

TEST(Matrix, CoversEveryPoint) {
  const auto scenarios = matrix();
  for (const Point& point : kPoints) {
    // End-to-end tests arm these: they are no faults, or not part of a migration.
    constexpr Kind kOthers[] = {Kind::kCheck, Kind::kCheckpoint, Kind::kSuspension,
                                Kind::kSlurm, Kind::kContainer,  Kind::kNetwork};
    if (std::ranges::find(kOthers, point.kind) != std::end(kOthers)) continue;
    EXPECT_TRUE(std::ranges::any_of(scenarios, [&point](const Scenario& scenario) {
      return scenario.point == point.name || scenario.then_point == point.name;
    })) << point.name;
  }
}

}  // namespace
}  // namespace gcr::fault::test
