// A migration that fails before the commit: the program goes on at the source, and neither host
// keeps anything of the attempt.
#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <string>

#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

constexpr int kFailedExit = 1;
constexpr int kRefusedExit = 3;
constexpr Milliseconds kPatience{120'000};

/// On host b CRIU starts as it should, and then misses an image that no dump of ours has.
constexpr const char* kRestoreFails = R"sh(
  criu=$(sed -n 's/^command = \["\(.*\)"\]$/\1/p' "$1/agent.toml")
  cat >"$1/failing-criu" <<END
#!/bin/sh
case " \$* " in *" restore "*) set -- "\$@" --cpu-cap=all ;; esac
exec $criu "\$@"
END
  chmod +x "$1/failing-criu"
  sed 's/ --cpu-cap=all//' "$1/failing-criu" >"$1/working-criu"
  chmod +x "$1/working-criu"
  sed -i "s|^command = .*|command = [\"$1/failing-criu\"]|" "$1/agent.toml")sh";

class FailureTest : public testing::TestWithParam<const char*> {
 protected:
  void start(const std::vector<std::string>& options = {}) {
    hosts_.emplace(options);
    counter_.emplace(start_counter(*hosts_, Host::kA, 512 * kMiB));
    client_.emplace(hosts_->variable("NS", Host::kA));
    ASSERT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst);
    source_ = hosts_->use(Host::kA);
    destination_ = hosts_->use(Host::kB);
  }

  void expect_that_the_source_goes_on() {
    EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst + 1);
    EXPECT_TRUE(counter_is_intact(*client_, *hosts_, Host::kA));
    EXPECT_EQ(hosts_->use(Host::kA), source_);
    EXPECT_EQ(hosts_->use(Host::kB), destination_);
  }

  std::optional<TwoHosts> hosts_;
  std::optional<App> counter_;
  std::optional<UdpClient> client_;
  HostUse source_;
  HostUse destination_;
};

/// The phase is announced when it begins, and each takes a while with so much VRAM.
TEST_P(FailureTest, TheSourceGoesOnWhenTheDestinationDies) {
  ASSERT_NO_FATAL_FAILURE(start());
  BackgroundCommand command(hosts_->migrate_command(Host::kA, Host::kB, counter_->pid()));
  const std::string phase = std::string(GetParam()) + ":";
  ASSERT_TRUE(command.wait_for_output(
      [&](const std::string& text) { return text.find(phase) != std::string::npos; }, kPatience))
      << command.out_so_far() << command.err_so_far();
  const auto workers = hosts_->workers(Host::kB);
  ASSERT_EQ(workers.size(), 1U);
  ::kill(workers[0], SIGKILL);

  const MigrateOutcome outcome = TwoHosts::parse_outcome(command.finish(kPatience));

  EXPECT_FALSE(outcome.migrated());
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.err, "");
  expect_that_the_source_goes_on();
}

INSTANTIATE_TEST_SUITE_P(During, FailureTest, testing::Values("prepare", "switchover", "restore"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(FailureTest, TheSourceGoesOnWhenTheImagesDoNotFit) {
  ASSERT_NO_FATAL_FAILURE(start());
  auto words = hosts_->migrate_command(Host::kA, Host::kB, counter_->pid());
  words.insert(words.end(), {"--max-bandwidth", "256M"});
  BackgroundCommand command(words);
  ASSERT_TRUE(command.wait_for_output(
      [](const std::string& text) { return text.find("precopy:") != std::string::npos; },
      kPatience));
  // Preflight has seen enough room; now others take it.
  const CommandResult shrunk =
      run({"mount", "-o", "remount,size=256k", hosts_->variable("RUNTIME", Host::kB)}, kPatience);
  ASSERT_EQ(shrunk.exit_code, 0) << shrunk.err;
  const MigrateOutcome outcome = TwoHosts::parse_outcome(command.finish(kPatience));
  EXPECT_EQ(outcome.exit_code, kFailedExit) << outcome.out << outcome.err;
  EXPECT_NE(outcome.err.find("images"), std::string::npos) << outcome.err;
  expect_that_the_source_goes_on();
}

TEST_F(FailureTest, ADestinationThatCannotStartCriuIsKnownBeforeTheGateCloses) {
  ASSERT_NO_FATAL_FAILURE(start({"--prepare-b", "echo 'reaper = \"/bin/false\"' >>$1/agent.toml"}));
  const MigrateOutcome outcome = hosts_->migrate(Host::kA, counter_->pid());
  EXPECT_EQ(outcome.exit_code, kRefusedExit) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.out.find("switchover"), std::string::npos) << outcome.out;
  expect_that_the_source_goes_on();
}

TEST_F(FailureTest, TheSourceGoesOnWhenTheRestoreFails) {
  ASSERT_NO_FATAL_FAILURE(start({"--prepare-b", kRestoreFails}));
  const MigrateOutcome outcome = hosts_->migrate(Host::kA, counter_->pid());
  EXPECT_NE(outcome.out.find("restore:"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.exit_code, kFailedExit) << outcome.out << outcome.err;
  expect_that_the_source_goes_on();
}

TEST_F(FailureTest, AMigrationSucceedsAfterOneThatFailed) {
  ASSERT_NO_FATAL_FAILURE(start({"--prepare-b", kRestoreFails}));
  const MigrateOutcome failed = hosts_->migrate(Host::kA, counter_->pid());
  EXPECT_EQ(failed.exit_code, kFailedExit) << failed.out << failed.err;
  const std::string config = hosts_->variable("CONFIG", Host::kB);
  const CommandResult repaired =
      run({"sed", "-i", "s|failing-criu|working-criu|", config}, kPatience);
  ASSERT_EQ(repaired.exit_code, 0) << repaired.err;

  const MigrateOutcome outcome = hosts_->migrate(Host::kA, counter_->pid());

  ASSERT_TRUE(migrated(outcome));
  EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kB), kCounterFirst + 1);
  EXPECT_TRUE(counter_is_intact(*client_, *hosts_, Host::kB));
}

}  // namespace
}  // namespace gcr::e2e
