// TCP: connections within a job, listeners, and connections with one end outside.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr std::size_t kSome = 5;
constexpr std::uint16_t kPort = 9100;  ///< of the host's address; the next one is the wildcard's

class TcpTest : public testing::Test {
 protected:
  explicit TcpTest(const std::vector<std::string>& options = {}) : hosts_(options) {}

  static std::vector<std::string> connected(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"python3", GCR_SOURCE_DIR "/tests/e2e/connected.py"});
    return arguments;
  }

  /// On host a.
  App start_tree() {
    std::vector<std::string> command =
        connected({"tree", hosts_.address(Host::kA), std::to_string(kPort), output_});
    const auto counter = counter_command(hosts_, 32 * kMiB);
    command.insert(command.end(), counter.begin(), counter.end());
    App tree = hosts_.start_app(Host::kA, command);
    EXPECT_TRUE(tree.wait_for_lines(kSome)) << tree.output();
    return tree;
  }

  /// On host b; answered at least once.
  App start_client(const std::string& address, std::uint16_t port,
                   const std::vector<std::string>& later = {}) {
    std::vector<std::string> arguments{"client", address, std::to_string(port)};
    arguments.insert(arguments.end(), later.begin(), later.end());
    App client = hosts_.start_app(Host::kB, connected(std::move(arguments)), false);
    EXPECT_TRUE(client.wait_for_lines(1)) << client.output();
    return client;
  }

  /// Every line that the tree has printed shows that each member has answered once.
  static void expect_whole(const App& tree) {
    ASSERT_TRUE(tree.wait_for_lines(tree.lines().size() + kSome)) << tree.output();
    std::size_t number = 0;
    for (const std::string& line : tree.lines()) {
      ASSERT_EQ(line, std::to_string(++number) + " all");
    }
  }

  /// It has been answered again, and its connection still exists.
  static void expect_connected(const App& client) {
    ASSERT_TRUE(client.wait_for_lines(client.lines().size() + kSome)) << client.output();
    EXPECT_THAT(client.lines(), Not(Contains(AnyOf("reset", "closed"))));
  }

  /// Its connection has ended, and it has found the server again.
  static bool is_answered_again(const App& client) {
    std::size_t lines = 0;
    const auto has_reported = [&] {
      const auto said = client.lines();
      lines = said.size();
      const auto end = std::ranges::find_if(
          said, [](const std::string& line) { return line == "closed" || line == "reset"; });
      return end != said.end() && std::ranges::find(end, said.end(), "1") != said.end();
    };
    while (!has_reported()) {
      if (!client.wait_for_lines(lines + 1)) return false;
    }
    return true;
  }

  TwoHosts hosts_;
  const std::string output_ = hosts_.directory() + "/gpu.out";
};

TEST_F(TcpTest, ConnectionsAndListenersMoveToAndFro) {
  const App tree = start_tree();
  ASSERT_NO_FATAL_FAILURE(move_to_and_fro(
      hosts_, tree.pid(), 5, [&](Host, const MigrateOutcome&) { expect_whole(tree); }));
  const App client = start_client(hosts_.address(Host::kB), kPort);
  const App other_client = start_client(hosts_.address(Host::kB), kPort + 1);
  expect_connected(client);
  expect_connected(other_client);
}

TEST_F(TcpTest, ConnectionToAnOutsiderPreventsTheMove) {
  const App tree = start_tree();
  const App client = start_client(hosts_.address(Host::kA), kPort);
  for (const auto& options : {std::vector<std::string>{}, {"--tcp", "refuse"}}) {
    const MigrateOutcome outcome = hosts_.migrate(Host::kA, tree.pid(), options);
    EXPECT_EQ(outcome.exit_code, kRefusedExit);
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr("tcp-established"), HasSubstr("(python3)"),
                      HasSubstr(hosts_.address(Host::kA) + ":" + std::to_string(kPort)),
                      HasSubstr(hosts_.address(Host::kB) + ":")));
  }
  expect_connected(client);
  expect_whole(tree);
}

TEST_F(TcpTest, ConnectionToAnOutsiderIsResetOnRequest) {
  const App tree = start_tree();
  const App client = start_client(hosts_.address(Host::kA), kPort, {hosts_.address(Host::kB)});
  const MigrateOutcome outcome = hosts_.migrate(Host::kA, tree.pid(), {"--tcp", "close"});
  ASSERT_TRUE(migrated(outcome));
  ASSERT_NO_FATAL_FAILURE(expect_whole(tree));
  // It noticed at once, and has found the server at its new address.
  ASSERT_TRUE(is_answered_again(client)) << client.output();
  EXPECT_THAT(read_file(output_ + ".clients"), HasSubstr("accepted\nreset\naccepted\n"));
}

/// As docs/usage.md shows it; a stand-in for ssh enters the host's network.
TEST_F(TcpTest, ClientReachesTheServerAtAMovedAddress) {
  const std::string tools = hosts_.directory() + "/tools";
  std::filesystem::create_directory(tools);
  std::filesystem::create_symlink("/bin/busybox", tools + "/arping");
  std::ofstream(tools + "/ssh") << "#!/bin/sh\nnetwork=" << hosts_.variable("NS", Host::kA)
                                << "\n[ \"$1\" = root@" << hosts_.address(Host::kA)
                                << " ] || network=" << hosts_.variable("NS", Host::kB)
                                << "\nshift\nexec nsenter --net=$network sh -ec \"$*\"\n";
  std::filesystem::permissions(tools + "/ssh", std::filesystem::perms::owner_all);
  const std::string agents = hosts_.address(Host::kA);
  const std::string address = agents.substr(0, agents.rfind('.')) + ".10";
  const std::string with_length = address + "/24 dev veth0";
  const std::string on_commit = "set -e; PATH=" + tools + ":$PATH; ssh root@$GCR_SRC ip addr del " +
                                with_length + "\nssh root@$GCR_DST \"ip addr add " + with_length +
                                " && arping -c 3 -A -I veth0 " + address + "\"";
  const std::string add = "ip addr add " + with_length;
  ASSERT_EQ(run(hosts_.on_host(Host::kA, {"/bin/sh", "-c", add}), kHangs).exit_code, 0);
  const App tree = start_tree();
  const App client = start_client(address, kPort + 1, {address});
  const MigrateOutcome outcome =
      hosts_.migrate(Host::kA, tree.pid(), {"--tcp", "close", "--on-commit", on_commit});
  ASSERT_TRUE(migrated(outcome));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("Sent 3 probe"), Not(HasSubstr("--on-commit"))));
  ASSERT_TRUE(is_answered_again(client)) << client.output();
  ASSERT_NO_FATAL_FAILURE(expect_whole(tree));
}

/// Which process dies, and when.
struct Death {
  Host host;
  const char* point;
};

class FailingTcpTest : public TcpTest, public testing::WithParamInterface<Death> {
 protected:
  FailingTcpTest() : TcpTest({"--fault-points", "true"}) {}
};

TEST_P(FailingTcpTest, AllConnectionsSurviveAtTheSource) {
  const App tree = start_tree();
  const App client = start_client(hosts_.address(Host::kA), kPort);
  std::ofstream(hosts_.directory(GetParam().host) + "/faults") << GetParam().point << " kill\n";
  const MigrateOutcome outcome = hosts_.migrate(Host::kA, tree.pid(), {"--tcp", "close"});
  EXPECT_FALSE(outcome.migrated());
  ASSERT_TRUE(hosts_.wait_until_idle(Host::kA));
  expect_whole(tree);
  expect_connected(client);
  EXPECT_TRUE(migrated(hosts_.migrate(Host::kA, tree.pid(), {"--tcp", "close"})));
  expect_whole(tree);
}

INSTANTIATE_TEST_SUITE_P(At, FailingTcpTest,
                         testing::Values(Death{Host::kA, "source.dumped"},
                                         Death{Host::kB, "destination.criu-restored"},
                                         Death{Host::kB, "destination.stopped"}),
                         [](const auto& info) {
                           std::string name = info.param.point;
                           std::ranges::replace_if(
                               name, [](char c) { return std::isalnum(c) == 0; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace gcr::e2e
