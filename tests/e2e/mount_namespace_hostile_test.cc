// Programs in a mount namespace of their own, as services with a private /tmp are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class PrivateMounts : public testing::Test {
 protected:
  /// A counter on host a with its own /var/tmp, after the shell commands `setup` ran there.
  void start(const std::string& setup) {
    const std::string output = hosts_.directory() + "/output";
    std::ofstream(output).flush();
    std::string command = "set -e; mount -t tmpfs private /var/tmp; " + setup +
                          "; exec </dev/null >>" + output + " 2>&1 " + hosts_.variable("GCR_CLI") +
                          " run -- ";
    for (const std::string& word : counter_command(hosts_, 0)) command += word + " ";
    app_.emplace(output,
                 std::make_unique<Program>(
                     hosts_.on_host(Host::kA, {"/usr/bin/unshare", "--mount", "--propagation",
                                               "private", "/bin/sh", "-c", command}),
                     Streams{}));
    ASSERT_TRUE(app_->wait_for_lines(1)) << app_->output();
    ASSERT_EQ(ask_counter(client_on(Host::kA), hosts_, Host::kA), kCounterFirst);
  }

  UdpClient client_on(Host host) const { return UdpClient(hosts_.variable("NS", host)); }

  TwoHosts hosts_;
  std::optional<App> app_;
};

TEST_F(PrivateMounts, ProgramWithAPrivateTmpUsesTheAgentsCriu) {
  const std::string mark = hosts_.directory() + "/mark";
  const std::string covering = hosts_.directory() + "/covering";
  std::ofstream(covering) << "#!/bin/sh\ngrep CapEff: /proc/self/status >>" + mark + "\nexit 1\n";
  fs::permissions(covering, fs::perms::owner_all);
  const std::string criu = GCR_SOURCE_DIR "/build/deps/criu/";
  ASSERT_THAT(read_file(hosts_.variable("CONFIG", Host::kA)), HasSubstr(criu));
  start("for file in " + criu + "criu " + criu + "lib/ld-linux-x86-64.so.2; do mount --bind " +
        covering + " $file; done");
  const MigrateOutcome there = hosts_.migrate(Host::kA, app_->pid());
  EXPECT_TRUE(migrated(there));
  EXPECT_FALSE(fs::exists(mark)) << read_file(mark);
  EXPECT_EQ(ask_counter(client_on(Host::kB), hosts_, Host::kB), kCounterFirst + 1);
  hosts_.stop_agent(Host::kB);
  hosts_.start_agent(Host::kB);
  EXPECT_TRUE(migrated(hosts_.migrate(Host::kB, there.pid)));
  EXPECT_EQ(ask_counter(client_on(Host::kA), hosts_, Host::kA), kCounterFirst + 2);
}

TEST_F(PrivateMounts, FileInAPrivateTmpIsRefused) {
  start("exec 9>/var/tmp/own");
  const MigrateOutcome outcome = hosts_.migrate(Host::kA, app_->pid());
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("the directory /var/tmp of a file in memory is not on a tmpfs"));
  EXPECT_THAT(outcome.err, HasSubstr("[memory-file]"));
  EXPECT_EQ(ask_counter(client_on(Host::kA), hosts_, Host::kA), kCounterFirst + 1);
}

TEST_F(PrivateMounts, CoveredProcIsRefusedBeforeAnythingIsSent) {
  start("mount --bind /dev/null /proc/$$/environ");
  const MigrateOutcome outcome = hosts_.migrate(Host::kA, app_->pid());
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("[mount-namespace]"));
  EXPECT_THAT(read_file(hosts_.variable("LOG", Host::kB)), testing::Not(HasSubstr("receiving")));
  EXPECT_EQ(ask_counter(client_on(Host::kA), hosts_, Host::kA), kCounterFirst + 1);
}

}  // namespace
}  // namespace gcr::e2e
