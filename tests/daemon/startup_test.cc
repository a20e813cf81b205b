// Unauthenticated clients: what they can make the daemon hold before they have shown a certificate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "migrate-agent/daemon/listener/admission.h"
#include "migrate-agent/daemon/listener/listening.h"
#include "tests/daemon/agent_process.h"

namespace gcr::daemon::test {
namespace {

using control::ConnectionKind;

TEST(Startups, AreLimitedInTotalAndByAddress) {
  Startups startups(5);
  std::vector<Startups::Token> held;
  for (int i = 0; i < 3; ++i) {
    auto token = startups.admit("10.0.0.1");
    ASSERT_TRUE(token);
    held.push_back(std::move(token));
  }
  EXPECT_FALSE(startups.admit("10.0.0.1"));
  for (int i = 0; i < 2; ++i) {
    auto token = startups.admit("10.0.0.2");
    ASSERT_TRUE(token);
    held.push_back(std::move(token));
  }
  EXPECT_FALSE(startups.admit("10.0.0.3"));
  held.front().reset();
  held.front().reset();
  EXPECT_TRUE(startups.admit("10.0.0.3"));
  held.clear();
  EXPECT_TRUE(startups.admit("10.0.0.1"));
}

TEST(Startups, Ipv6NetworkCountsAsOneAddress) {
  const auto of = [](const char* text) { return network_of(asio::ip::make_address(text)); };
  EXPECT_EQ(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff:ffff:ffff:ffff"));
  EXPECT_NE(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
  EXPECT_NE(of("10.0.0.1"), of("10.0.0.2"));
  EXPECT_EQ(of("::ffff:10.0.0.1"), of("10.0.0.1"));
  EXPECT_NE(of("::ffff:10.0.0.1"), of("::ffff:10.0.0.2"));
  EXPECT_NE(of("fe80::1%1"), of("fe80::1%2"));
}

class StartupTest : public testing::Test {
 protected:
  control::test::Credentials credentials_;
};

TEST_F(StartupTest, SlowClientIsDropped) {
  AgentProcess agent(credentials_, "startup_timeout_ms = 50");
  PlainConnection slow(agent.port());
  slow.send("GCRM");
  EXPECT_TRUE(slow.ends_without_a_word());
  EXPECT_TRUE(agent.wait_for_log("no preface within 50 ms"));
}

TEST_F(StartupTest, ClientThatStopsBeforeTheHandshakeIsDropped) {
  AgentProcess agent(credentials_, "startup_timeout_ms = 50");
  PlainConnection slow(agent.port());
  slow.send_preface(ConnectionKind::kControl, {});
  EXPECT_TRUE(slow.ends_without_a_word());
  EXPECT_TRUE(agent.wait_for_log("did not finish its handshake"));
  EXPECT_TRUE(agent.wait_for_log("ended with status 1"));
}

TEST_F(StartupTest, GarbageIsDroppedWithoutAWorker) {
  AgentProcess agent(credentials_);
  PlainConnection browser(agent.port());
  browser.send("GET / HTTP/1.1\r\nHost: x\r\n");
  EXPECT_TRUE(browser.ends_without_a_word());
  EXPECT_TRUE(agent.wait_for_log("not a connection of gcr-migrate"));
}

TEST_F(StartupTest, ClientThatLeavesEarlyIsForgotten) {
  AgentProcess agent(credentials_);
  PlainConnection(agent.port()).send("GC");
  EXPECT_TRUE(agent.wait_for_log("the peer closed before its preface was complete"));
}

TEST_F(StartupTest, SilentClientsCannotFillAllSlots) {
  AgentProcess agent(credentials_, "max_startups = 4");
  PlainConnection first(agent.port());
  PlainConnection second(agent.port());
  PlainConnection third(agent.port());
  EXPECT_TRUE(third.ends_without_a_word());
  EXPECT_TRUE(agent.wait_for_log("too many have not shown a certificate"));
  first.close();
  ASSERT_TRUE(agent.wait_for_log("the peer closed before"));
  Client welcome(agent, credentials_, "operator");
  EXPECT_EQ(welcome.ask("pid").event().phase(), "pid");
}

TEST_F(StartupTest, ClientsWithCertificatesDoNotCount) {
  AgentProcess agent(credentials_, "max_startups = 2");
  Client first(agent, credentials_, "operator");
  ASSERT_EQ(first.ask("pid").event().phase(), "pid");
  Client second(agent, credentials_, "operator");
  EXPECT_EQ(second.ask("pid").event().phase(), "pid");
}

}  // namespace
}  // namespace gcr::daemon::test
