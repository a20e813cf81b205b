// Whole migrations whose data goes over RDMA, and what happens if that fails. Runs in
// scripts/guest, with two soft RDMA devices and a link between them (scripts/lib/guest-rdma-pair).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

/// Removes the RDMA device of host a's address during its lifetime; TCP still works.
class NoDevice {
 public:
  NoDevice() { sh("rdma link del rxe-a"); }
  ~NoDevice() { sh("rdma link add rxe-a type rxe netdev rdma-a"); }
  NoDevice(const NoDevice&) = delete;
  NoDevice& operator=(const NoDevice&) = delete;

 private:
  static void sh(const std::string& command) {
    const CommandResult result = run({"/bin/sh", "-c", command}, Milliseconds(30'000));
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
};

class RdmaTest : public testing::Test {
 protected:
  void expect_progress() {
    const std::size_t lines = scribbler_.lines().size();
    EXPECT_TRUE(scribbler_.wait_for_lines(lines + 10)) << scribbler_.output();
  }

  TwoHosts hosts_{{"--rdma", "true", "--unencrypted-data", "true"}};
  App scribbler_ = start_scribbler(hosts_, Host::kA, 32 * kMiB, {"--dirty-per-second", "0.1"});
};

TEST_F(RdmaTest, DataGoesOverRdmaIfBothHostsHaveIt) {
  const MigrateReport outcome = hosts_.migrate_for_report(Host::kA, scribbler_.pid(), {});
  ASSERT_TRUE(migrated(outcome));
  EXPECT_EQ(outcome.report.transport(), "rdma");
  EXPECT_FALSE(outcome.report.encrypted());
  EXPECT_THAT(outcome.report.transport_reason(), IsEmpty());
  EXPECT_GE(outcome.report.wire_bytes(), outcome.report.sent_vram_bytes());
  expect_progress();
}

TEST_F(RdmaTest, DataGoesOverTcpIfRdmaCannotConnect) {
  const NoDevice no_device;
  const MigrateReport outcome = hosts_.migrate_for_report(Host::kA, scribbler_.pid(), {});
  ASSERT_TRUE(migrated(outcome));
  EXPECT_EQ(outcome.report.transport(), "tcp");
  EXPECT_TRUE(outcome.report.encrypted());
  EXPECT_THAT(outcome.report.transport_reason(), HasSubstr("RDMA"));
  expect_progress();
}

}  // namespace
}  // namespace gcr::e2e
