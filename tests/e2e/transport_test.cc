// How the data of a whole migration is sent: the request, the available transports, and the report
// about them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kVramBytes = 64 * kMiB;

/// Bytes that arrived on a network interface of a host so far.
std::uint64_t received_bytes(TwoHosts& hosts, Host host, const std::string& interface) {
  const CommandResult shown =
      run(hosts.on_host(host, {"cat", "/proc/self/net/dev"}), Milliseconds(60'000));
  std::istringstream lines(shown.out);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t bytes = 0;
    if (words >> name >> bytes && name == interface + ":") return bytes;
  }
  ADD_FAILURE() << "no interface " << interface << " in\n" << shown.out;
  return 0;
}

void expect_the_counter_at(TwoHosts& hosts, Host host) {
  UdpClient client(hosts.variable("NS", Host::kA));
  EXPECT_EQ(ask_counter(client, hosts, host), kCounterFirst);
  EXPECT_TRUE(counter_is_intact(client, hosts, host));
}

TEST(TransportTest, DataIsEncryptedByDefaultWithAReason) {
  TwoHosts hosts;
  App counter = start_counter(hosts, Host::kA, kVramBytes);
  const MigrateReport outcome = hosts.migrate_for_report(Host::kA, counter.pid(), {});
  ASSERT_TRUE(migrated(outcome));
  EXPECT_EQ(outcome.report.transport(), "tcp");
  EXPECT_TRUE(outcome.report.encrypted());
  EXPECT_THAT(outcome.report.transport_reason(), HasSubstr("no RDMA"));
  EXPECT_GE(outcome.report.wire_bytes(), kVramBytes);
  EXPECT_EQ(outcome.report.reconnections(), 0U);
  expect_the_counter_at(hosts, Host::kB);
}

TEST(TransportTest, RequestedRdmaIsRefusedIfUnavailable) {
  TwoHosts hosts({"--unencrypted-data", "true"});
  App counter = start_counter(hosts, Host::kA, kVramBytes);
  const MigrateOutcome outcome = hosts.migrate(Host::kA, counter.pid(), {"--transport", "rdma"});
  EXPECT_EQ(outcome.exit_code, kRefusedExit) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("the source has no RDMA"));
  expect_the_counter_at(hosts, Host::kA);
}

TEST(TransportTest, PlaintextIsRefusedUnlessBothAgentsAllowIt) {
  TwoHosts hosts({"--unencrypted-data", "true", "--unencrypted-data-b", "false"});
  App counter = start_counter(hosts, Host::kA, kVramBytes);
  const MigrateOutcome outcome =
      hosts.migrate(Host::kA, counter.pid(), {"--transport", "tcp", "--plaintext"});
  EXPECT_EQ(outcome.exit_code, kRefusedExit) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("the destination's agent takes no data unencrypted"));
  expect_the_counter_at(hosts, Host::kA);
}

TEST(TransportTest, PlaintextIsSentIfBothAgentsAllowIt) {
  TwoHosts hosts({"--unencrypted-data", "true"});
  App counter = start_counter(hosts, Host::kA, kVramBytes);
  const MigrateReport outcome =
      hosts.migrate_for_report(Host::kA, counter.pid(), {"--transport", "tcp", "--plaintext"});
  ASSERT_TRUE(migrated(outcome));
  EXPECT_EQ(outcome.report.transport(), "tcp");
  EXPECT_FALSE(outcome.report.encrypted());
  EXPECT_EQ(outcome.report.transport_reason(), "");
  expect_the_counter_at(hosts, Host::kB);
}

TEST(TransportTest, DataUsesAllAddressesOfTheDestination) {
  TwoHosts hosts({"--links", "2"});
  App counter = start_counter(hosts, Host::kA, kVramBytes);
  const std::uint64_t first = received_bytes(hosts, Host::kB, "veth0");
  const std::uint64_t second = received_bytes(hosts, Host::kB, "veth1");
  const MigrateReport outcome = hosts.migrate_for_report(Host::kA, counter.pid(), {"--lanes", "4"});
  ASSERT_TRUE(migrated(outcome));
  EXPECT_GT(received_bytes(hosts, Host::kB, "veth0") - first, kVramBytes / 8);
  EXPECT_GT(received_bytes(hosts, Host::kB, "veth1") - second, kVramBytes / 8);
  expect_the_counter_at(hosts, Host::kB);
}

}  // namespace
}  // namespace gcr::e2e
