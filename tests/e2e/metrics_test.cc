// The metrics of two agents after real migrations, as Prometheus and the dashboard read them; and
// their logs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

using testing::HasSubstr;

constexpr const char* kGet =
    "import sys, urllib.error, urllib.request\n"
    "try: print(urllib.request.urlopen(sys.argv[1]).read().decode(), end='')\n"
    "except urllib.error.HTTPError as error: print(error.code, error.read().decode(), end='')\n";

std::string get(const TwoHosts& hosts, Host host, const std::string& path) {
  const CommandResult result =
      run(hosts.on_host(host, {"python3", "-c", kGet, "http://127.0.0.1:9411" + path}), kPatience);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

/// promtool has no complaint.
std::string complaints(const std::string& metrics) {
  const std::string path = testing::TempDir() + "/gcr-metrics." + std::to_string(::getpid());
  std::ofstream(path) << metrics;
  const CommandResult checked =
      run({"sh", "-c", "exec \"$0\" check metrics <\"$1\"", GCR_PROMTOOL, path}, kPatience);
  std::remove(path.c_str());
  return checked.exit_code == 0
             ? checked.out + checked.err
             : "status " + std::to_string(checked.exit_code) + ": " + checked.out + checked.err;
}

std::set<std::string> metrics_in(const std::string& text) {
  static const std::regex kName("\\bgcr_[a-z_]+");
  return {std::sregex_token_iterator(text.begin(), text.end(), kName),
          std::sregex_token_iterator()};
}

std::set<std::string> queried_by_the_dashboard() {
  const std::string text = read_file(std::string(GCR_SOURCE_DIR) + "/docs/grafana-dashboard.json");
  static const std::regex kExpression("\"(expr|query)\": \"(([^\"\\\\]|\\\\.)*)\"");
  std::set<std::string> names;
  for (std::sregex_iterator match(text.begin(), text.end(), kExpression), end; match != end;
       ++match) {
    names.merge(metrics_in((*match)[2].str()));
  }
  return names;
}

/// The lines of a worker with a migration that do not name it. The daemon has many.
std::vector<std::string> anonymous_lines(const std::string& log, pid_t daemon) {
  static const std::regex kProcess("migrate-agent\\[([0-9]+)\\]");
  std::set<std::string> with_migration;
  std::vector<std::string> anonymous;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    std::smatch process;
    if (!std::regex_search(line, process, kProcess)) continue;
    if (process[1] == std::to_string(daemon)) continue;
    if (line.find("] migration=") != std::string::npos) {
      with_migration.insert(process[1]);
    } else if (with_migration.contains(process[1])) {
      anonymous.push_back(line);
    }
  }
  return with_migration.empty() ? std::vector<std::string>{"no line has a migration"} : anonymous;
}

TEST(Metrics, MetricsAreValidAndCoverTheDashboard) {
  TwoHosts hosts({"--metrics-listen", "127.0.0.1:9411", "--log-level", "debug"});
  App counter = start_counter(hosts, Host::kA, 16 * kMiB);
  const MigrateOutcome refused = hosts.migrate(Host::kA, 1);
  const MigrateOutcome outcome = hosts.migrate(Host::kA, counter.pid());
  ASSERT_TRUE(migrated(outcome));
  ASSERT_NE(refused.exit_code, 0);
  ASSERT_TRUE(hosts.wait_until_idle(Host::kA));
  ASSERT_TRUE(hosts.wait_until_idle(Host::kB));

  const std::string source = get(hosts, Host::kA, "/metrics");
  const std::string destination = get(hosts, Host::kB, "/metrics");

  EXPECT_EQ(complaints(source), "");
  EXPECT_EQ(complaints(destination), "");
  EXPECT_THAT(source, HasSubstr("gcr_migrations_total{outcome=\"migrated\",role=\"source\"} 1\n"));
  EXPECT_THAT(source, HasSubstr("gcr_migration_downtime_seconds_count 1\n"));
  EXPECT_THAT(
      source,
      HasSubstr("gcr_migration_phase_seconds_count{phase=\"criu dump\",role=\"source\"} 1\n"));
  EXPECT_THAT(destination,
              HasSubstr("gcr_migrations_total{outcome=\"migrated\",role=\"destination\"} 1\n"));
  EXPECT_THAT(destination, HasSubstr("gcr_migration_phase_seconds_count{phase=\"criu "
                                     "restore\",role=\"destination\"} 1\n"));
  EXPECT_THAT(source, testing::Not(HasSubstr("phase=\"other\"")));
  EXPECT_THAT(destination, testing::Not(HasSubstr("phase=\"other\"")));
  const std::set<std::string> queried = queried_by_the_dashboard();
  EXPECT_GT(queried.size(), 10U);
  const std::set<std::string> served = metrics_in(source);
  for (const std::string& name : queried) EXPECT_TRUE(served.contains(name)) << name;

  for (const Host host : {Host::kA, Host::kB}) {
    EXPECT_THAT(get(hosts, host, "/healthz"), HasSubstr("\"ready\":true"));
    EXPECT_THAT(anonymous_lines(read_file(hosts.variable("LOG", host)), hosts.agent_pid(host)),
                testing::IsEmpty());
  }
}

}  // namespace
}  // namespace gcr::e2e
