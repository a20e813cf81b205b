// Live migration: VRAM moves in rounds while the program writes to it, and the report describes
// them.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <string>
#include <vector>

#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

using Options = std::vector<std::string>;

std::uint64_t all_sent(const proto::MigrateReport& report) {
  std::uint64_t bytes = 0;
  for (const proto::Round& round : report.rounds()) bytes += round.sent_bytes();
  return bytes;
}

/// A phase that the report must have.
proto::PhaseTime phase(const proto::MigrateReport& report, const std::string& name) {
  for (const proto::PhaseTime& phase : report.phases()) {
    if (phase.name() == name) return phase;
  }
  ADD_FAILURE() << "no phase " << name;
  return {};
}

double end_ms(const proto::PhaseTime& phase) { return phase.start_ms() + phase.duration_ms(); }

/// The program runs on after the move, and finds its VRAM unchanged.
void expect_progress(App& app, std::size_t more_lines = 25) {
  const std::size_t lines = app.lines().size();
  EXPECT_TRUE(app.wait_for_lines(lines + more_lines)) << app.output();
}

TEST(Live, WritingProgramIsSentInShrinkingRounds) {
  TwoHosts hosts;
  // While 64 MiB are sent it rewrites a third of them; two chunks fit the limit, three do not. The
  // one that is always written contains its small buffers.
  App scribbler = start_scribbler(hosts, Host::kA, 64 * kMiB, {"--dirty-per-second", "0.05"});

  const MigrateReport outcome = hosts.migrate_for_report(
      Host::kA, scribbler.pid(),
      {"--downtime-limit", "440", "--max-bandwidth", "10M", "--image-mode", "stream"});

  ASSERT_TRUE(migrated(outcome));
  const proto::MigrateReport& report = outcome.report;
  EXPECT_EQ(report.switchover_reason(), "fits");
  ASSERT_GE(report.rounds_size(), 3);
  EXPECT_EQ(report.rounds(0).sent_bytes(), report.vram_bytes());
  EXPECT_LT(report.rounds(1).sent_bytes(), report.vram_bytes() / 2);
  const proto::Round& last = report.rounds(report.rounds_size() - 1);
  EXPECT_TRUE(last.last());
  EXPECT_LT(last.sent_bytes(), report.rounds(1).sent_bytes());
  EXPECT_EQ(report.sent_vram_bytes(), all_sent(report));
  EXPECT_TRUE(report.prefilled());
  EXPECT_TRUE(report.verified());
  expect_progress(scribbler);
}

TEST(Live, IdleProgramsVramIsSentOnce) {
  TwoHosts hosts;
  App counter = start_counter(hosts, Host::kA, 256 * kMiB);
  const MigrateReport outcome = hosts.migrate_for_report(Host::kA, counter.pid(), {});
  ASSERT_TRUE(migrated(outcome));
  ASSERT_EQ(outcome.report.rounds_size(), 2);
  EXPECT_EQ(outcome.report.rounds(1).sent_bytes(), 0U);
  UdpClient client(hosts.variable("NS", Host::kA));
  EXPECT_EQ(ask_counter(client, hosts, Host::kB), kCounterFirst);
  EXPECT_TRUE(counter_is_intact(client, hosts, Host::kB));
}

TEST(Live, ZeroChunksAreNotSent) {
  TwoHosts hosts;
  App scribbler = start_scribbler(hosts, Host::kA, 256 * kMiB,
                                  {"--dirty-per-second", "0.2", "--zeros", "0.75"});
  const MigrateReport outcome = hosts.migrate_for_report(Host::kA, scribbler.pid(), {});
  ASSERT_TRUE(migrated(outcome));
  const proto::Round& first = outcome.report.rounds(0);
  EXPECT_GT(first.zero_chunks(), 256 * kMiB / kChunkBytes / 2);
  EXPECT_LT(first.sent_bytes(), outcome.report.vram_bytes() / 2);
  expect_progress(scribbler);
}

TEST(Live, AutoConvergeThrottlesAFastWriter) {
  TwoHosts hosts;
  App scribbler = start_scribbler(hosts, Host::kA, 32 * kMiB,
                                  {"--dirty-per-second", "4", "--steps-per-second", "50"});
  const MigrateReport outcome = hosts.migrate_for_report(
      Host::kA, scribbler.pid(),
      {"--max-bandwidth", "40M", "--downtime-limit", "100", "--auto-converge"});
  ASSERT_TRUE(migrated(outcome));
  double most = 0;
  for (const proto::Round& round : outcome.report.rounds()) {
    most = std::max(most, round.throttle());
  }
  EXPECT_GE(most, 0.2);
  expect_progress(scribbler);
}

TEST(Live, WithoutAutoConvergeAFastWriterIsSwitchedOver) {
  TwoHosts hosts;
  App scribbler = start_scribbler(hosts, Host::kA, 32 * kMiB,
                                  {"--dirty-per-second", "4", "--steps-per-second", "50"});
  const MigrateReport outcome = hosts.migrate_for_report(
      Host::kA, scribbler.pid(), {"--max-bandwidth", "20M", "--downtime-limit", "50"});
  ASSERT_TRUE(migrated(outcome));
  EXPECT_EQ(outcome.report.switchover_reason(), "not-shrinking");
  EXPECT_GT(outcome.report.expected_downtime_ms(), 50);
  expect_progress(scribbler);
}

TEST(Live, StrictLeavesAFastWriterAtTheSource) {
  TwoHosts hosts;
  const HostUse before = hosts.use(Host::kB);
  App scribbler = start_scribbler(hosts, Host::kA, 32 * kMiB,
                                  {"--dirty-per-second", "4", "--steps-per-second", "50"});
  const MigrateReport outcome = hosts.migrate_for_report(
      Host::kA, scribbler.pid(), {"--max-bandwidth", "20M", "--downtime-limit", "50", "--strict"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_FALSE(outcome.report.migrated());
  EXPECT_NE(outcome.report.message().find("downtime limit"), std::string::npos)
      << outcome.report.message();
  EXPECT_TRUE(scribbler.program().running());
  expect_progress(scribbler);
  EXPECT_EQ(hosts.use_coming_to(Host::kB, before), before);
}

/// Rewritten between the end of pre-copy and the closing of the gate, too much VRAM is left.
TEST(Live, GateClosureUndoneByStrictCountsAsDowntime) {
  TwoHosts hosts({"--fault-points", "true", "--peer-silence-ms", "300000"});
  App scribbler = start_scribbler(hosts, Host::kA, 64 * kMiB, {"--dirty-per-second", "0.05"});
  const std::string faults = hosts.directory(Host::kA) + "/faults";
  const std::string go_on = faults + ".go-on";
  std::ofstream(faults) << "source.closing run until [ -e " << go_on << " ]; do sleep 0.01; done\n";
  auto migration = std::async(std::launch::async, [&] {
    return hosts.migrate_for_report(
        Host::kA, scribbler.pid(),
        {"--strict", "--downtime-limit", "450", "--max-bandwidth", "10M"});
  });
  const auto ended = [&] {
    return migration.wait_for(Milliseconds(10)) == std::future_status::ready;
  };
  while (std::filesystem::exists(faults) && !ended()) {
  }
  expect_progress(scribbler, 100);
  std::ofstream(go_on) << "go on";
  const MigrateReport outcome = migration.get();
  ASSERT_TRUE(migrated(outcome));
  const proto::MigrateReport& report = outcome.report;
  const proto::PhaseTime undone = phase(report, "undone closing");
  EXPECT_GT(report.downtime_ms(), undone.duration_ms()) << "it is a part of it";
  EXPECT_GT(report.gate_closed_ms(), end_ms(undone)) << "it was closed again";
  expect_progress(scribbler);
}

TEST(Live, BuffersCreatedAndFreedBetweenRoundsMove) {
  TwoHosts hosts;
  App scribbler =
      start_scribbler(hosts, Host::kA, 256 * kMiB,
                      {"--dirty-per-second", "0.3", "--churn", "4", "--steps-per-second", "20"});
  const MigrateReport outcome = hosts.migrate_for_report(
      Host::kA, scribbler.pid(), {"--max-bandwidth", "150M", "--downtime-limit", "30"});
  ASSERT_TRUE(migrated(outcome));
  expect_progress(scribbler, 40);
}

TEST(Live, WithoutPrefillVramIsFilledAfterTheSwitchover) {
  TwoHosts hosts;
  App scribbler = start_scribbler(hosts, Host::kA, 128 * kMiB, {"--dirty-per-second", "0.2"});
  const MigrateReport outcome =
      hosts.migrate_for_report(Host::kA, scribbler.pid(), {"--no-prefill"});
  ASSERT_TRUE(migrated(outcome));
  EXPECT_FALSE(outcome.report.prefilled());
  EXPECT_GE(phase(outcome.report, "fill and verify VRAM").start_ms(),
            outcome.report.gate_closed_ms());
  expect_progress(scribbler);
}

TEST(Live, ImagesTravelWithAndWithoutCompression) {
  for (const std::string codec : {"none", "lz4", "zstd"}) {
    TwoHosts hosts;
    App counter = start_counter(hosts, Host::kA, 16 * kMiB);
    const MigrateReport outcome =
        hosts.migrate_for_report(Host::kA, counter.pid(), {"--compression", codec});
    ASSERT_TRUE(migrated(outcome)) << codec;
    EXPECT_EQ(outcome.report.compression(), codec);
    EXPECT_FALSE(outcome.report.image_mode_reason().empty());
    if (codec != "none") {
      EXPECT_LT(outcome.report.sent_image_bytes(), outcome.report.image_bytes() / 2) << codec;
    }
    UdpClient client(hosts.variable("NS", Host::kA));
    EXPECT_EQ(ask_counter(client, hosts, Host::kB), kCounterFirst);
  }
}

TEST(Live, EveryPhaseIsOnOneClock) {
  TwoHosts hosts;
  App scribbler = start_scribbler(hosts, Host::kA, 256 * kMiB, {"--dirty-per-second", "0.5"});
  const MigrateReport outcome =
      hosts.migrate_for_report(Host::kA, scribbler.pid(), {"--max-bandwidth", "500M"});
  ASSERT_TRUE(migrated(outcome));
  const proto::MigrateReport& report = outcome.report;
  // Both hosts are namespaces of one machine: their clocks are the same.
  EXPECT_LE(std::abs(report.clock_offset_ms()), report.clock_error_ms() + 0.001);
  EXPECT_GT(report.clock_error_ms(), 0);
  const double restored_from = phase(report, "criu restore").start_ms();
  EXPECT_GE(restored_from, end_ms(phase(report, "criu dump")) - report.clock_error_ms());
  EXPECT_LE(end_ms(phase(report, "attach VRAM")),
            report.gate_closed_ms() + report.downtime_ms() + report.clock_error_ms());
  for (const proto::PhaseTime& phase : report.phases()) {
    EXPECT_GE(phase.start_ms(), 0) << phase.name();
    EXPECT_LE(end_ms(phase), report.total_ms() + report.clock_error_ms()) << phase.name();
  }
}

TEST(Live, ImagesTravelAsRequested) {
  TwoHosts hosts;
  App counter = start_counter(hosts, Host::kA, 16 * kMiB);
  const MigrateReport in_rounds =
      hosts.migrate_for_report(Host::kA, counter.pid(), {"--image-mode", "rounds"});
  ASSERT_TRUE(migrated(in_rounds));
  EXPECT_EQ(in_rounds.report.image_mode(), "rounds");
  const MigrateReport streamed = hosts.migrate_for_report(
      Host::kB, static_cast<pid_t>(in_rounds.report.destination_pid()), {"--image-mode", "stream"});
  ASSERT_TRUE(migrated(streamed));
  EXPECT_EQ(streamed.report.image_mode(), "stream");
}

TEST(Live, RepeatedMovesNeverCorruptAWritingProgram) {
  const int moves = moves_or(20);
  TwoHosts hosts;
  App scribbler =
      start_scribbler(hosts, Host::kA, 24 * kMiB,
                      {"--dirty-per-second", "20", "--steps-per-second", "200", "--piece", "64K",
                       "--check-every", "5", "--zeros", "0.2", "--churn", "50"});
  std::mt19937 random(20261121);
  Host host = Host::kA;
  pid_t pid = scribbler.pid();
  for (int move = 0; move < moves; ++move) {
    // The time of the move relative to the program's steps, and the speed of the copy, are random.
    ASSERT_TRUE(scribbler.wait_for_lines(scribbler.lines().size() + random() % 8));
    const std::string rate = std::to_string(20 + random() % 400) + "M";
    const MigrateReport outcome = hosts.migrate_for_report(
        host, pid,
        {"--max-bandwidth", rate, "--downtime-limit", std::to_string(5 + random() % 50)});
    ASSERT_TRUE(migrated(outcome))
        << "move " << move << "\n"
        << scribbler.output().substr(
               scribbler.output().size() < 2000 ? 0 : scribbler.output().size() - 2000);
    pid = outcome.report.destination_pid();
    host = other(host);
  }
  expect_progress(scribbler, 100);
}

}  // namespace
}  // namespace gcr::e2e
