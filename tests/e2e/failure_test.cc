// A migration that fails before the commit: the program runs on at the source, and neither host
// keeps anything of the attempt.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

const std::vector<std::string> kWithFaultPoints{"--fault-points", "true"};

/// On host b CRIU starts normally, and then misses an image that no dump of ours contains.
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

/// Where the destination dies, and the operator's error message.
struct Death {
  const char* point;
  int exit_status;
};

class FailureTest : public testing::TestWithParam<Death> {
 protected:
  void start(const std::vector<std::string>& options = {}) {
    hosts_.emplace(options);
    counter_.emplace(start_counter(*hosts_, Host::kA, 16 * kMiB));
    client_.emplace(hosts_->variable("NS", Host::kA));
    ASSERT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst);
    source_ = hosts_->use(Host::kA);
    destination_ = hosts_->use(Host::kB);
  }

  void arm(Host host, const std::string& point) const {
    std::ofstream(hosts_->directory(host) + "/faults") << point << "\n";
  }
  bool was_reached(Host host) const {
    return std::filesystem::exists(hosts_->directory(host) + "/faults.hit");
  }

  void expect_source_progress() {
    EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst + 1);
    EXPECT_TRUE(counter_is_intact(*client_, *hosts_, Host::kA));
    EXPECT_EQ(hosts_->use_coming_to(Host::kA, source_), source_);
    EXPECT_EQ(hosts_->use_coming_to(Host::kB, destination_), destination_);
  }

  std::optional<TwoHosts> hosts_;
  std::optional<App> counter_;
  std::optional<UdpClient> client_;
  HostUse source_;
  HostUse destination_;
};

TEST_P(FailureTest, SourceResumesWhenTheDestinationDies) {
  ASSERT_NO_FATAL_FAILURE(start(kWithFaultPoints));
  arm(Host::kB, std::string("destination.") + GetParam().point + " kill");
  const MigrateOutcome outcome = hosts_->migrate(Host::kA, counter_->pid());
  EXPECT_TRUE(was_reached(Host::kB));
  EXPECT_EQ(outcome.exit_code, GetParam().exit_status) << outcome.out << outcome.err;
  expect_source_progress();
}

INSTANTIATE_TEST_SUITE_P(At, FailureTest,
                         testing::Values(Death{"prepared", kUnreachableExit},
                                         Death{"imaged", kFailedExit},
                                         Death{"frozen", kFailedExit}),
                         [](const auto& info) { return std::string(info.param.point); });

TEST_F(FailureTest, FailingCriuIsFoundBeforeTheGateCloses) {
  ASSERT_NO_FATAL_FAILURE(start({"--prepare-b", "echo 'reaper = \"/bin/false\"' >>$1/agent.toml"}));
  const MigrateOutcome outcome = hosts_->migrate(Host::kA, counter_->pid());
  EXPECT_EQ(outcome.exit_code, kRefusedExit) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.out.find("switchover"), std::string::npos) << outcome.out;
  expect_source_progress();
}

TEST_F(FailureTest, SourceResumesWhenTheRestoreFails) {
  ASSERT_NO_FATAL_FAILURE(start({"--prepare-b", kRestoreFails}));
  const MigrateOutcome outcome = hosts_->migrate(Host::kA, counter_->pid());
  EXPECT_NE(outcome.out.find("restore:"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.exit_code, kFailedExit) << outcome.out << outcome.err;
  expect_source_progress();
}

TEST_F(FailureTest, MigrationSucceedsAfterAFailedOne) {
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
