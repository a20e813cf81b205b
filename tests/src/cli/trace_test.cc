// gcr-migrate --trace: trace viewers can read the file, and it agrees with the report.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <stdexcept>

#include "src/cli/trace.pb.h"
#include "tests/src/cli/migrate_fixture.h"

namespace gcr::cli::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

struct Slice {
  std::string name;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

/// The file as a viewer reads it.
struct Seen {
  std::map<int, std::string> processes;
  std::map<std::pair<int, int>, std::string> tracks;
  std::map<std::pair<int, int>, std::vector<Slice>> slices;
  std::map<std::string, std::pair<int, double>> instants;  // process and microseconds

  /// The names on the tracks of that name.
  std::vector<std::string> names_on(const std::string& host, const std::string& track) const {
    std::vector<std::string> names;
    for (const auto& [place, name] : tracks) {
      if (processes.at(place.first) != host || name != track) continue;
      for (const Slice& slice : slices.at(place)) names.push_back(slice.name);
    }
    return names;
  }
};

Slice slice_of(const trace::TraceEvent& event) {
  EXPECT_TRUE(event.has_ts() && event.has_dur()) << event.name();
  return {event.name(), std::llround(event.ts() * 1e3),
          std::llround(event.ts() * 1e3) + std::llround(event.dur() * 1e3)};
}

Seen view(const trace::TraceFile& file) {
  Seen seen;
  for (const trace::TraceEvent& event : file.trace_events()) {
    EXPECT_TRUE(event.has_pid() && event.has_tid());
    const std::pair place{event.pid(), event.tid()};
    const auto name = [&] { return event.args().fields().at("name").string_value(); };
    if (event.name() == "process_name") {
      EXPECT_TRUE(seen.processes.emplace(event.pid(), name()).second);
    } else if (event.name() == "thread_name") {
      EXPECT_TRUE(seen.tracks.emplace(place, name()).second);
    } else if (event.ph() == "X") {
      seen.slices[place].push_back(slice_of(event));
    } else if (event.ph() == "i") {
      EXPECT_TRUE(seen.instants.emplace(event.name(), std::pair{event.pid(), event.ts()}).second);
    } else {
      EXPECT_EQ(event.ph(), "M") << event.name();
    }
  }
  return seen;
}

/// Every two slices of a track nest or follow each other; every slice has a named place.
void expect_well_formed(const Seen& seen) {
  for (const auto& [place, slices] : seen.slices) {
    EXPECT_TRUE(seen.processes.contains(place.first));
    EXPECT_TRUE(seen.tracks.contains(place));
    for (std::size_t i = 0; i < slices.size(); ++i) {
      const Slice& a = slices[i];
      EXPECT_GE(a.start_ns, 0) << a.name;
      EXPECT_GE(a.end_ns, a.start_ns) << a.name;
      for (std::size_t j = i + 1; j < slices.size(); ++j) {
        const Slice& b = slices[j];
        const bool apart = a.end_ns <= b.start_ns || b.end_ns <= a.start_ns;
        const bool nested = (a.start_ns <= b.start_ns && b.end_ns <= a.end_ns) ||
                            (b.start_ns <= a.start_ns && a.end_ns <= b.end_ns);
        EXPECT_TRUE(apart || nested) << a.name << " and " << b.name;
      }
    }
  }
  for (const auto& [name, instant] : seen.instants) EXPECT_GE(instant.second, 0) << name;
}

class Trace : public Migrate {
 protected:
  Trace() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gcr-trace-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = pattern;
    path_ = folder_ + "/trace.json";
  }
  ~Trace() override { std::filesystem::remove_all(folder_); }

  std::string content() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

  Seen traced(const proto::MigrateReport& what) {
    finished_ = against(report(what), {"--trace", path_});
    trace::TraceFile file;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(content(), &file).ok()) << content();
    const Seen seen = view(file);
    expect_well_formed(seen);
    return seen;
  }

  std::string folder_;
  std::string path_;
  Finished finished_;
};

proto::MigrateReport full_report() {
  proto::MigrateReport report;
  report.set_migrated(true);
  report.set_committed(true);
  report.set_gate_closed_ms(600.5);
  report.set_downtime_ms(250.25);
  add_phase(report, {"preflight", "source", "", 0, 20.1});
  add_phase(report, {"prepare", "source", "", 20.1, 79.9});
  add_phase(report, {"switchover", "source", "", 600, 251});
  add_phase(report, {"close gate", "source", "", 600, 0.5});
  add_phase(report, {"final round", "source", "vram", 601, 60});
  add_phase(report, {"criu restore", "destination", "restore", 700, 90});
  add_round(report, 1, 100, 400);
  add_round(report, 2, 500, 100);
  add_round(report, 3, 601, 60).set_last(true);
  return report;
}

TEST_F(Trace, HasEveryPhaseAndRoundOfBothSides) {
  const Seen seen = traced(full_report());
  EXPECT_EQ(finished_.exit_status, 0) << finished_.err;
  EXPECT_THAT(content(), HasSubstr("\"traceEvents\":["));
  EXPECT_THAT(seen.processes,
              UnorderedElementsAre(testing::Pair(1, "source"), testing::Pair(2, "destination")));
  EXPECT_THAT(seen.names_on("source", "process"),
              ElementsAre("preflight", "prepare", "switchover", "close gate"));
  EXPECT_THAT(seen.names_on("source", "vram"), ElementsAre("final round"));
  EXPECT_THAT(seen.names_on("source", "rounds"),
              ElementsAre("round 1", "round 2", "round 3, the last"));
  EXPECT_THAT(seen.names_on("destination", "restore"), ElementsAre("criu restore"));
}

TEST_F(Trace, TimesAreMicrosecondsAndRoundsHaveValues) {
  traced(full_report());
  trace::TraceFile file;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(content(), &file).ok());
  const auto round = std::ranges::find(file.trace_events(), "round 1", &trace::TraceEvent::name);
  ASSERT_NE(round, file.trace_events().end());
  EXPECT_EQ(round->ts(), 100'000);
  EXPECT_EQ(round->dur(), 400'000);
  EXPECT_EQ(round->args().fields().at("sent_bytes").number_value(), 64 << 20);
  EXPECT_EQ(round->args().fields().at("throttle").number_value(), 0.25);
}

TEST_F(Trace, GateClosesAtTheSourceAndOpensAtTheDestination) {
  const Seen seen = traced(full_report());
  ASSERT_EQ(seen.instants.size(), 2U);
  EXPECT_EQ(seen.instants.at("gate closed"), std::pair(1, 600'500.0));
  EXPECT_EQ(seen.instants.at("gate opened"), std::pair(2, 850'750.0));
}

TEST_F(Trace, OverlappingPhasesGetSeparateTracks) {
  proto::MigrateReport what = full_report();
  what.clear_phases();
  add_phase(what, {"dump", "source", "", 10, 20});
  add_phase(what, {"chunks", "source", "", 15, 30});
  add_phase(what, {"inside", "source", "", 16, 2});
  const Seen seen = traced(what);
  EXPECT_THAT(seen.names_on("source", "process"), ElementsAre("dump", "inside"));
  EXPECT_THAT(seen.names_on("source", "process (2)"), ElementsAre("chunks"));
}

TEST_F(Trace, AdjacentPhasesShareATrack) {
  proto::MigrateReport what = full_report();
  what.clear_phases();
  // Inexact sums: 0.1 + 0.2 is more than 0.3.
  add_phase(what, {"first", "source", "", 0.1, 0.2});
  add_phase(what, {"second", "source", "", 0.3, 0.1});
  EXPECT_THAT(traced(what).names_on("source", "process"), ElementsAre("first", "second"));
}

TEST_F(Trace, TimesAreNeverNegative) {
  proto::MigrateReport what = full_report();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  add_phase(what, {"early", "destination", "", -5, 8});
  add_phase(what, {"backwards", "destination", "", 50, -8});
  add_phase(what, {"nonsense", "destination", "", kNan, 1});
  add_phase(what, {"endless", "destination", "", 1, std::numeric_limits<double>::infinity()});
  what.mutable_rounds(0)->set_rate_bytes_per_s(kNan);
  const Seen seen = traced(what);
  for (const auto& [place, slices] : seen.slices) {
    for (const Slice& slice : slices) {
      if (slice.name == "early") {
        EXPECT_EQ(std::pair(slice.start_ns, slice.end_ns),
                  std::pair(std::int64_t{0}, std::int64_t{3'000'000}));
      }
    }
  }
}

TEST_F(Trace, FailedMigrationWritesATrace) {
  proto::MigrateReport what = full_report();
  what.set_migrated(false);
  what.set_committed(false);
  what.set_source_touched(true);
  const Seen seen = traced(what);
  EXPECT_EQ(finished_.exit_status, 1);
  EXPECT_EQ(seen.instants.at("gate opened").first, 1);
}

TEST_F(Trace, UnwritableFileIsFoundBeforeTheMigration) {
  const Finished finished =
      run_cli(words("127.0.0.1:1", {"--trace", folder_ + "/missing/trace.json"}));
  EXPECT_EQ(finished.exit_status, 2);
  EXPECT_THAT(finished.err, HasSubstr("cannot open " + folder_ + "/missing/trace.json"));
  EXPECT_EQ(std::ranges::count(finished.err, '\n'), 1) << finished.err;
}

}  // namespace
}  // namespace gcr::cli::test
