// Progress messages to an operator, checked against what then happened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"
#include "tests/support/terminal.h"

namespace gcr::e2e {
namespace {

/// The accuracy of the estimate is a benchmark's question (scripts/bench).
TEST(Progress, DowntimeIsPredictedForAKnownProgram) {
  TwoHosts hosts;
  App scribbler = start_scribbler(hosts, Host::kA, 64 * kMiB, {"--dirty-per-second", "0.2"});
  pid_t pid = scribbler.pid();
  Host host = Host::kA;
  for (int move = 0; move < 4; ++move) {
    const MigrateReport outcome = hosts.migrate_for_report(host, pid, {});
    ASSERT_TRUE(migrated(outcome));
    const proto::MigrateReport& report = outcome.report;
    pid = report.destination_pid();
    host = other(host);
    // Each agent reports exactly once that it has no estimate.
    EXPECT_EQ(report.expected_is_least(), move < 2) << move;
    EXPECT_GT(report.expected_downtime_ms(), 0);
    EXPECT_LE(report.expected_send_ms(), report.expected_downtime_ms());
  }
  // Filling VRAM after the switchover takes a different time, which it has not measured.
  const MigrateReport unseen = hosts.migrate_for_report(host, pid, {"--no-prefill"});
  ASSERT_TRUE(migrated(unseen));
  EXPECT_TRUE(unseen.report.expected_is_least());
}

TEST(Progress, StalledOperatorBlocksNothing) {
  TwoHosts hosts;
  App counter = start_counter(hosts, Host::kA, 64 * kMiB);
  std::vector<std::string> command = hosts.migrate_command(Host::kA, Host::kB, counter.pid());
  command.insert(command.end(), {"--max-bandwidth", "40M"});
  BackgroundCommand migration(command);
  ASSERT_TRUE(migration.wait_for_output(
      [](const std::string& text) { return text.find("precopy: ") != std::string::npos; },
      kPatience));
  migration.program().signal(SIGSTOP);
  EXPECT_TRUE(counter.program().wait(kPatience)) << "the source's copy does not end";
  const UdpClient there(hosts.variable("NS", Host::kB));
  EXPECT_EQ(ask_counter(there, hosts, Host::kB), kCounterFirst);
  migration.program().signal(SIGCONT);
  EXPECT_TRUE(TwoHosts::parse_outcome(migration.finish(kPatience)).migrated());
}

/// The screen of a terminal without the empty rows at the end.
std::string trimmed(std::string screen) {
  const auto dead = screen.find("\nPane is dead");
  if (dead != std::string::npos) screen.erase(dead);
  screen.erase(screen.find_last_not_of('\n') + 1);
  return screen + "\n";
}

/// Writes GCR_BINARY_DIR/live-display.txt, of which docs/live-display.txt is a copy.
TEST(Progress, TerminalShowsTheRunningMigration) {
  TwoHosts hosts;
  App scribbler = start_scribbler(hosts, Host::kA, 128 * kMiB, {"--dirty-per-second", "0.4"});
  ASSERT_TRUE(scribbler.wait_for_lines(1));
  // An agent that knows the program predicts its downtime.
  const MigrateReport there = hosts.migrate_for_report(Host::kA, scribbler.pid(), {});
  ASSERT_TRUE(migrated(there));
  const MigrateReport back = hosts.migrate_for_report(Host::kB, there.report.destination_pid(), {});
  ASSERT_TRUE(migrated(back));

  std::vector<std::string> command =
      hosts.migrate_command(Host::kA, Host::kB, back.report.destination_pid());
  // Slow enough that rounds are visible on every machine.
  command.insert(command.end(), {"--downtime-limit", "50", "--max-bandwidth", "100M"});
  const gcr::test::Terminal terminal(100, 50, command, {"PATH=/usr/sbin:/usr/bin:/sbin:/bin"});
  std::string middle;
  ASSERT_TRUE(terminal.wait_for([&](const std::string& screen) {
    middle = trimmed(screen);
    return screen.find("precopy    round 2 ") != std::string::npos &&
           screen.find("dirtied at ") != std::string::npos &&
           screen.find("downtime about ") != std::string::npos &&
           screen.find(" left") != std::string::npos;
  })) << terminal.screen();
  EXPECT_THAT(middle, testing::ContainsRegex("precopy    round 2   \\[[#-]*\\] +[0-9]+ %\n"));
  EXPECT_THAT(middle, testing::ContainsRegex("  [0-9.]+ ([KMG]i)?B of [0-9.]+ MiB, [0-9]+ MB/s"));
  ASSERT_EQ(terminal.finish(), 0);
  const std::string end = trimmed(terminal.screen(true));
  std::string last = end.substr(end.rfind("\nmigrated "));  // which may be wider than the terminal
  std::erase(last, '\n');
  EXPECT_THAT(last, testing::ContainsRegex("^migrated pid=[0-9]+ .* verified=yes processes=1$"));
  EXPECT_EQ(end.find("precopy    round"), std::string::npos) << "the display is still there\n"
                                                             << end;
  std::ofstream(std::string(GCR_BINARY_DIR) + "/live-display.txt") << middle << "\n"
                                                                   << std::string(99, '-') << "\n\n"
                                                                   << end;
}

}  // namespace
}  // namespace gcr::e2e
