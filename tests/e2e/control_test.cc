// An operator controls a running migration: cancels it, detaches, asks for its state, loses the
// connection.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <string>

#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

using testing::HasSubstr;

constexpr int kCancelledExit = 7;

class ControlTest : public testing::Test {
 protected:
  /// A migration that stays in pre-copy for longer than each test waits.
  BackgroundCommand start_slow_migration() { return start_migration({"--max-bandwidth", "400K"}); }

  BackgroundCommand start_migration(const std::vector<std::string>& options) {
    return BackgroundCommand(hosts_.migrate_command(Host::kA, Host::kB, counter_.pid(), options));
  }

  static bool is_paused(const std::string& output) {
    return output.find("paused: ") != std::string::npos;
  }

  static bool is_copying(const std::string& output) {
    return output.find("precopy: ") != std::string::npos;
  }

  static std::string id_in(const std::string& output) {
    const auto at = output.find("migration ");
    return at == std::string::npos ? "" : output.substr(at + 10, 36);
  }

  void expect_source_progress() {
    EXPECT_EQ(ask_counter(client_, hosts_, Host::kA), kCounterFirst);
    EXPECT_TRUE(counter_is_intact(client_, hosts_, Host::kA));
    EXPECT_EQ(hosts_.use_coming_to(Host::kA, source_), source_);
    EXPECT_EQ(hosts_.use_coming_to(Host::kB, destination_), destination_);
  }

  TwoHosts hosts_;
  App counter_ = start_counter(hosts_, Host::kA, 16 * kMiB);
  UdpClient client_{hosts_.variable("NS", Host::kA)};
  HostUse source_ = hosts_.use(Host::kA);
  HostUse destination_ = hosts_.use(Host::kB);
};

TEST_F(ControlTest, CtrlCCancelsTheMigration) {
  BackgroundCommand migration = start_slow_migration();
  ASSERT_TRUE(migration.wait_for_output(is_copying, kPatience)) << migration.err_so_far();
  migration.program().signal(SIGINT);
  const CommandResult result = migration.finish(kPatience);
  EXPECT_EQ(result.exit_code, kCancelledExit) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the process runs on at the source"));
  expect_source_progress();
}

TEST_F(ControlTest, AnotherCommandCancelsByIdPrefix) {
  BackgroundCommand migration = start_slow_migration();
  ASSERT_TRUE(migration.wait_for_output(is_copying, kPatience)) << migration.err_so_far();
  const std::string id = id_in(migration.out_so_far());
  const CommandResult listed = hosts_.order(Host::kA, {"list"});
  EXPECT_THAT(listed.out, HasSubstr(id));
  EXPECT_THAT(hosts_.order(Host::kB, {"list"}).out, HasSubstr(id));
  const CommandResult cancelled = hosts_.order(Host::kA, {"cancel", id.substr(0, 8)});
  EXPECT_EQ(cancelled.exit_code, 0) << cancelled.err;
  EXPECT_EQ(migration.finish(kPatience).exit_code, kCancelledExit);
  EXPECT_THAT(hosts_.order(Host::kA, {"status", id}).out, HasSubstr("undone"));
  EXPECT_THAT(hosts_.order(Host::kA, {"list"}).out, testing::Not(HasSubstr(id)));
  EXPECT_THAT(hosts_.order(Host::kA, {"list", "--all"}).out, HasSubstr(id));
  expect_source_progress();
}

TEST_F(ControlTest, PausedMigrationContinuesOnOrder) {
  BackgroundCommand migration = start_migration({"--pause-before-switchover"});
  ASSERT_TRUE(migration.wait_for_output(is_paused, kPatience)) << migration.err_so_far();
  const std::string id = id_in(migration.out_so_far());
  const std::string status = hosts_.order(Host::kA, {"status", id, "--json"}).out;
  EXPECT_THAT(status, HasSubstr("\"phase\":\"paused\""));
  EXPECT_THAT(status, HasSubstr("\"paused\":true"));
  EXPECT_THAT(hosts_.order(Host::kA, {"list"}).out, HasSubstr("paused"));
  // It runs here, and is not in its switchover.
  EXPECT_EQ(ask_counter(client_, hosts_, Host::kA), kCounterFirst);
  const CommandResult told = hosts_.order(Host::kA, {"continue", id});
  EXPECT_EQ(told.exit_code, 0) << told.err;
  EXPECT_TRUE(TwoHosts::parse_outcome(migration.finish(kPatience)).migrated());
  const UdpClient there(hosts_.variable("NS", Host::kB));
  EXPECT_EQ(ask_counter(there, hosts_, Host::kB), kCounterFirst + 1);
  EXPECT_TRUE(counter_is_intact(there, hosts_, Host::kB));
  const CommandResult again = hosts_.order(Host::kA, {"continue", id});
  EXPECT_EQ(again.exit_code, kRefusedExit);
  EXPECT_THAT(again.err, HasSubstr("accepts no more orders: it is confirmed"));
}

/// As in an upgrade: stopping an agent does not wait for an operator who may come back tomorrow.
TEST_F(ControlTest, PausedMigrationSurvivesAgentRestarts) {
  BackgroundCommand migration = start_migration({"--pause-before-switchover"});
  ASSERT_TRUE(migration.wait_for_output(is_paused, kPatience)) << migration.err_so_far();
  EXPECT_EQ(ask_counter(client_, hosts_, Host::kA), kCounterFirst);  // which writes to VRAM
  const auto has_gone_on = [](const std::string& output) {
    return output.find("precopy: ", output.find("paused: ")) != std::string::npos;
  };
  ASSERT_TRUE(migration.wait_for_output(has_gone_on, kPatience)) << migration.err_so_far();
  for (const Host host : {Host::kA, Host::kB}) {
    ASSERT_EQ(hosts_.workers(host).size(), 1U);
    const pid_t worker = hosts_.workers(host)[0];
    hosts_.stop_agent(host);
    EXPECT_EQ(::kill(worker, 0), 0);
    hosts_.start_agent(host);
  }
  const std::string id = id_in(migration.out_so_far());
  EXPECT_THAT(hosts_.order(Host::kA, {"list"}).out, HasSubstr(id));
  const CommandResult told = hosts_.order(Host::kA, {"continue", id});
  EXPECT_EQ(told.exit_code, 0) << told.err;
  EXPECT_TRUE(TwoHosts::parse_outcome(migration.finish(kPatience)).migrated());
  const UdpClient there(hosts_.variable("NS", Host::kB));
  EXPECT_EQ(ask_counter(there, hosts_, Host::kB), kCounterFirst + 1);
  EXPECT_TRUE(counter_is_intact(there, hosts_, Host::kB));
}

TEST_F(ControlTest, PausedMigrationCanBeCancelled) {
  BackgroundCommand migration = start_migration({"--pause-before-switchover"});
  ASSERT_TRUE(migration.wait_for_output(is_paused, kPatience)) << migration.err_so_far();
  const CommandResult cancelled = hosts_.order(Host::kA, {"cancel", id_in(migration.out_so_far())});
  EXPECT_EQ(cancelled.exit_code, 0) << cancelled.err;
  EXPECT_EQ(migration.finish(kPatience).exit_code, kCancelledExit);
  expect_source_progress();
}

TEST_F(ControlTest, LimitsCanChangeDuringAMigration) {
  BackgroundCommand migration = start_slow_migration();
  ASSERT_TRUE(migration.wait_for_output(is_copying, kPatience)) << migration.err_so_far();
  const std::string id = id_in(migration.out_so_far());
  const CommandResult unpaused = hosts_.order(Host::kA, {"continue", id});
  EXPECT_EQ(unpaused.exit_code, kRefusedExit);
  EXPECT_THAT(unpaused.err, HasSubstr("does not pause before its switchover"));
  const CommandResult elsewhere = hosts_.order(Host::kB, {"set", id, "--max-bandwidth", "0"});
  EXPECT_EQ(elsewhere.exit_code, kRefusedExit);
  EXPECT_THAT(elsewhere.err, HasSubstr("orders for a migration go to its source"));
  const CommandResult limit = hosts_.order(Host::kA, {"set", id, "--downtime-limit", "77"});
  EXPECT_EQ(limit.exit_code, 0) << limit.err;
  const std::string status = hosts_.order(Host::kA, {"status", id, "--json"}).out;
  EXPECT_THAT(status, HasSubstr("\"downtime_limit_ms\":77"));
  EXPECT_THAT(status, HasSubstr("\"max_bandwidth_bytes\":\"400000\""));
  // It would not end in kPatience with the limit.
  const CommandResult free = hosts_.order(Host::kA, {"set", id, "--max-bandwidth", "0"});
  EXPECT_EQ(free.exit_code, 0) << free.err;
  const CommandResult result = migration.finish(kPatience);
  EXPECT_TRUE(TwoHosts::parse_outcome(result).migrated());
  EXPECT_THAT(result.out, HasSubstr("from now on: bandwidth is not limited"));
  EXPECT_THAT(result.out, HasSubstr("limit 77.0 ms"));
}

TEST_F(ControlTest, DetachedMigrationRunsOnAndReportsItsState) {
  const CommandResult left = run(
      [this] {
        auto command = hosts_.migrate_command(Host::kA, Host::kB, counter_.pid());
        command.emplace_back("--detach");
        return command;
      }(),
      kPatience);
  ASSERT_EQ(left.exit_code, 0) << left.err;
  const std::string id = id_in(left.out);
  ASSERT_TRUE(counter_.program().wait(kPatience)) << "the source's copy does not end";
  ASSERT_TRUE(hosts_.wait_until_idle(Host::kA));
  ASSERT_TRUE(hosts_.wait_until_idle(Host::kB));
  EXPECT_THAT(hosts_.order(Host::kA, {"status", id}).out, HasSubstr("confirmed"));
  EXPECT_THAT(hosts_.order(Host::kB, {"status", id}).out, HasSubstr("running"));
  const UdpClient there(hosts_.variable("NS", Host::kB));
  EXPECT_EQ(ask_counter(there, hosts_, Host::kB), kCounterFirst);
  const CommandResult late = hosts_.order(Host::kA, {"cancel", id});
  EXPECT_EQ(late.exit_code, kRefusedExit) << late.out << late.err;
}

TEST_F(ControlTest, OutcomeIsReportedAfterALostConnection) {
  BackgroundCommand migration = start_slow_migration();
  ASSERT_TRUE(migration.wait_for_output(is_copying, kPatience)) << migration.err_so_far();
  const auto workers = hosts_.workers(Host::kA);
  ASSERT_EQ(workers.size(), 1u);
  ASSERT_EQ(::kill(workers.front(), SIGKILL), 0);
  const CommandResult result = migration.finish(kPatience);
  EXPECT_EQ(result.exit_code, kFailedExit) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the source's worker died before the migration committed"));
  expect_source_progress();
}

TEST_F(ControlTest, DisconnectedOperatorDoesNotStopAMigration) {
  BackgroundCommand migration = start_migration({"--max-bandwidth", "8M", "--max-rounds", "1"});
  ASSERT_TRUE(migration.wait_for_output(is_copying, kPatience)) << migration.err_so_far();
  migration.program().signal(SIGKILL);
  EXPECT_TRUE(counter_.program().wait(kPatience)) << "the source's copy does not end";
  const UdpClient there(hosts_.variable("NS", Host::kB));
  EXPECT_EQ(ask_counter(there, hosts_, Host::kB), kCounterFirst);
}

TEST_F(ControlTest, OperatorCannotDecideWhatTheProtocolCan) {
  BackgroundCommand migration = start_slow_migration();
  ASSERT_TRUE(migration.wait_for_output(is_copying, kPatience)) << migration.err_so_far();
  const std::string id = id_in(migration.out_so_far());
  const CommandResult early =
      hosts_.order(Host::kA, {"resolve", id, "--run-here", "--peer-is-gone"});
  EXPECT_EQ(early.exit_code, kRefusedExit) << early.out << early.err;
  EXPECT_NE(hosts_.order(Host::kA, {"resolve", id, "--run-here"}).exit_code, 0);
  migration.program().signal(SIGINT);
  EXPECT_EQ(migration.finish(kPatience).exit_code, kCancelledExit);
  expect_source_progress();
}

}  // namespace
}  // namespace gcr::e2e
