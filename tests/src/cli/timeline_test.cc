// gcr-migrate timeline: the image of a report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "tests/src/cli/migrate_fixture.h"

namespace gcr::cli::test {
namespace {

using testing::HasSubstr;
using testing::Not;

std::vector<std::smatch> all_of(const std::string& text, const std::regex& what) {
  return {std::sregex_iterator(text.begin(), text.end(), what), std::sregex_iterator()};
}

class Timeline : public Migrate {
 protected:
  /// The report as --json prints it, in a file, and then as an image.
  Finished draw(const proto::MigrateReport& what) {
    const std::string path = testing::TempDir() + "/gcr-timeline-" + std::to_string(::getpid());
    std::ofstream(path) << against(report(what), {"--json"}).out;
    Finished finished = run_cli({"timeline", path});
    std::filesystem::remove(path);
    return finished;
  }

  static proto::MigrateReport a_migration() {
    proto::MigrateReport report;
    report.set_migrated(true);
    report.set_migration_id(example_id_bytes());
    report.set_vram_bytes(1ULL << 30);
    report.set_total_ms(1000);
    report.set_gate_closed_ms(800);
    report.set_downtime_ms(125);
    add_phase(report, {"pre-copy", "source", "course", 100, 700});
    add_phase(report, {"undone closing", "source", "gate", 700, 25});
    add_phase(report, {"switchover", "source", "course", 800, 100});
    add_phase(report, {"close gate", "source", "process", 800, 10});
    add_phase(report, {"criu restore", "destination", "process", 840, 40});
    add_round(report, 1, 100, 500);
    add_round(report, 2, 810, 30).set_last(true);
    return report;
  }
};

TEST_F(Timeline, HasEveryPhaseAndRoundInItsPlace) {
  const Finished finished = draw(a_migration());
  ASSERT_EQ(finished.exit_status, 0) << finished.err;
  // 696 pixels for 900 ms, from 132 on: all bars end at 900.
  EXPECT_THAT(finished.out,
              HasSubstr(R"(<rect class="bar course" x="209.3" y="26.0" width="541.3")"));
  EXPECT_THAT(finished.out, HasSubstr(R"(<rect class="bar round" x="209.3")"));
  EXPECT_THAT(finished.out, HasSubstr("<title>criu restore: 40 ms</title>"));
  for (const char* text : {">source<", ">destination<", ">rounds<", ">process<", ">pre-copy<",
                           ">round 1, 64 MiB<", "1 GiB of GPU memory in 1.0 s, 2 rounds"}) {
    EXPECT_THAT(finished.out, HasSubstr(text));
  }
}

TEST_F(Timeline, MarksAndEnlargesTheDowntime) {
  const std::string out = draw(a_migration()).out;
  EXPECT_THAT(out, HasSubstr("downtime: 100 ms, from the gate's closing"));
  const std::regex mark(R"x(<rect class="down" x="[0-9.]+" y="[0-9.]+" width="([0-9.]+)")x");
  const auto marks = all_of(out, mark);
  ASSERT_EQ(marks.size(), 2U);
  EXPECT_NEAR(std::stod(marks[0][1]), 696.0 / 9, 0.1);
  EXPECT_GT(std::stod(marks[1][1]), 600);
}

TEST_F(Timeline, IsOneWellFormedImageForLightAndDarkPages) {
  const std::string out = draw(a_migration()).out;
  EXPECT_THAT(out, HasSubstr("prefers-color-scheme: dark"));
  const std::regex box(R"x(viewBox="0 0 840 ([0-9]+)")x");
  std::smatch match;
  ASSERT_TRUE(std::regex_search(out, match, box));
  const double height = std::stod(match[1]);
  const std::regex words(R"x(<text [^>]*y="([0-9.]+)")x");
  for (const auto& text : all_of(out, words)) {
    EXPECT_LT(std::stod(text[1]), height);
  }
  EXPECT_EQ(all_of(out, std::regex("<(rect|text|title|svg|style)[ >]")).size(),
            all_of(out, std::regex("</(rect|text|title|svg|style)>|<rect [^>]*/>")).size());
}

TEST_F(Timeline, NamesFromThePeerAreEscaped) {
  proto::MigrateReport report = a_migration();
  add_phase(report, {"</title><script>", "source", "course", 0, 50});
  add_phase(report, {"elsewhere", "<other> & \"host\"", "course", 0, 50});
  const std::string out = draw(report).out;
  EXPECT_THAT(out, Not(HasSubstr("<script>")));
  EXPECT_THAT(out, HasSubstr("&lt;/title&gt;&lt;script&gt;"));
}

TEST_F(Timeline, OverlappingBarsGetSeparateRows) {
  proto::MigrateReport report = a_migration();
  add_phase(report, {"dump", "source", "process", 805, 50});
  const std::string out = draw(report).out;
  const auto y_of = [&](const std::string& name) {
    const std::regex bar("y=\"([0-9.]+)\"[^>]*><title>" + name);
    std::smatch match;
    EXPECT_TRUE(std::regex_search(out, match, bar)) << name;
    return match.empty() ? std::string() : match[1].str();
  };
  EXPECT_NE(y_of("dump"), y_of("close gate"));
}

TEST_F(Timeline, ReportWithoutPhasesHasNoImage) {
  proto::MigrateReport empty;
  empty.set_code("refused");
  const Finished finished = draw(empty);
  EXPECT_EQ(finished.exit_status, 2);
  EXPECT_THAT(finished.err, HasSubstr("no phases to show"));
  EXPECT_EQ(finished.out, "");
}

}  // namespace
}  // namespace gcr::cli::test
