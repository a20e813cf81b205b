// A local user moves a process without a certificate; the agents' logs name the user and the
// action, and contain no secret.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>

#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Puts these lines before all others of the agent's configuration and restarts it.
void configure(TwoHosts& hosts, Host host, const std::string& lines) {
  const std::string path = hosts.variable("CONFIG", host);
  const std::string before = read_file(path);
  std::ofstream(path) << lines << before;
  hosts.stop_agent(host);
  hosts.start_agent(host);
}

TEST(SecurityTest, LogsNameTheLocalUserButNoSecret) {
  TwoHosts hosts({"--log-level", "debug"});
  for (const Host host : {Host::kA, Host::kB}) {
    const std::string folder = hosts.directory(host);
    configure(
        hosts, host,
        "local_socket = \"" + folder + "/local.sock\"\naudit_log = \"" + folder + "/audit.log\"\n");
  }
  App app = start_counter(hosts, Host::kA, 16u << 20);
  const CommandResult result =
      run(local_command(hosts, Host::kA, hosts.directory(Host::kA) + "/local.sock",
                        {"local", hosts.address(Host::kB), std::to_string(app.pid())}),
          Milliseconds(120'000));
  const MigrateOutcome outcome = TwoHosts::parse_outcome(result);
  ASSERT_TRUE(outcome.migrated()) << outcome.err;
  ASSERT_TRUE(hosts.wait_until_idle(Host::kA));
  ASSERT_TRUE(hosts.wait_until_idle(Host::kB));

  const std::string source = read_file(hosts.directory(Host::kA) + "/audit.log");
  const std::string destination = read_file(hosts.directory(Host::kB) + "/audit.log");
  EXPECT_THAT(source, AllOf(HasSubstr("role=\"source\""), HasSubstr("ordered_by=\"uid 0\""),
                            HasSubstr("pid=\"" + std::to_string(app.pid()) + "\""),
                            HasSubstr("outcome=\"migrated\"")));
  EXPECT_THAT(destination,
              AllOf(HasSubstr("role=\"destination\""), HasSubstr("ordered_by=\"uid 0\""),
                    HasSubstr("pid=\"" + std::to_string(outcome.pid) + "\""),
                    HasSubstr("outcome=\"migrated\"")));
  EXPECT_EQ(std::ranges::count(source, '\n'), 1);
  EXPECT_EQ(std::ranges::count(destination, '\n'), 1);

  // Tokens and keys have 16 bytes and more: as text, at least that many digits in a row.
  static const std::regex kSecret("[0-9a-fA-F]{32,}|[A-Za-z0-9+/]{40,}={0,2}|PRIVATE KEY");
  for (const Host host : {Host::kA, Host::kB}) {
    const std::string log = read_file(hosts.variable("LOG", host));
    EXPECT_THAT(log, HasSubstr("migrated")) << "the whole log is read";
    std::smatch found;
    std::istringstream lines(log);
    for (std::string line; std::getline(lines, line);) {
      // A path is no secret, however long.
      const std::string plain = std::regex_replace(line, std::regex("/[^ ,;:]*"), "/");
      EXPECT_FALSE(std::regex_search(plain, found, kSecret)) << line;
    }
  }
}

}  // namespace
}  // namespace gcr::e2e
