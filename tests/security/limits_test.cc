// What authenticated peers can make an agent hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "migrate-agent/daemon/listener/admission.h"
#include "tests/daemon/journals.h"
#include "tests/security/support.h"

namespace gcr::daemon::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(Peers, OnePeerGetsAtMostHalf) {
  Peers peers(8);
  std::vector<Peers::Place> places;
  for (int i = 0; i < 4; ++i) {
    auto place = peers.admit("alice", false);
    ASSERT_TRUE(place);
    places.push_back(std::move(*place));
  }
  const auto refused = peers.admit("alice", false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.error().message(), AllOf(HasSubstr("\"alice\""), HasSubstr("4")));
  EXPECT_TRUE(peers.admit("bob", false));
  places.pop_back();
  EXPECT_TRUE(peers.admit("alice", false));
}

TEST(Peers, AQuarterIsReservedForAgents) {
  Peers peers(8);
  std::vector<Peers::Place> places;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
    auto place = peers.admit(name, false);
    ASSERT_TRUE(place);
    places.push_back(std::move(*place));
  }
  EXPECT_FALSE(peers.admit("g", false));
  for (const char* name : {"node1", "node2"}) {
    auto place = peers.admit(name, true);
    ASSERT_TRUE(place);
    places.push_back(std::move(*place));
  }
  EXPECT_FALSE(peers.admit("node3", true));
}

TEST(Peers, MovedSlotCountsOnce) {
  Peers peers(2);
  auto first = peers.admit("alice", true);
  ASSERT_TRUE(first);
  {
    const Peers::Place moved = std::move(*first);
    EXPECT_FALSE(peers.admit("alice", true));
  }
  EXPECT_TRUE(peers.admit("alice", true));
}

TEST(Peers, LimitOfOneAdmitsOne) {
  Peers peers(1);
  EXPECT_TRUE(peers.admit("alice", false));
}

class Limits : public testing::Test {
 protected:
  control::test::Credentials credentials_;
  control::TlsFiles operator_ = credentials_.issue({.role = "operator", .common_name = "alice"});
};

TEST_F(Limits, ExcessConnectionIsRefusedWithAReason) {
  AgentProcess agent(credentials_, "max_connections = 4");
  const auto tls = control::make_tls_context(operator_);
  ASSERT_TRUE(tls);
  {
    const Client first(agent, *tls);
    const Client second(agent, *tls);
    const Finished refused = list_with(operator_, agent.endpoint());
    EXPECT_EQ(refused.exit_status, 3);
    EXPECT_THAT(refused.output, AllOf(HasSubstr("max_connections = 4"), HasSubstr("try again")));
    Client other(agent, credentials_, "operator");
    proto::Envelope list;
    list.mutable_list_request();
    EXPECT_TRUE(other.call(list).has_list_reply());
  }
  EXPECT_TRUE(agent.wait_for_log("closed the connection"));
}

/// The refusal that `operator` gets for moving a process from the agent to itself.
std::vector<std::string> findings_of(AgentProcess& agent, control::test::Credentials& credentials,
                                     pid_t pid) {
  Client client(agent, credentials, "operator");
  proto::Envelope check;
  proto::MigrateRequest& request = *check.mutable_check_request()->mutable_migrate();
  request.set_pid(pid);
  request.set_destination(agent.endpoint().to_string());
  std::vector<std::string> ids;
  const auto reply = client.call(check);
  EXPECT_TRUE(reply.has_check_reply()) << reply.ShortDebugString();
  for (const auto& finding : reply.check_reply().findings()) ids.push_back(finding.id());
  return ids;
}

TEST_F(Limits, WaitingJournalsUseNoMigrationSlot) {
  AgentHome home;
  for (int i = 0; i < 2; ++i) {
    write_source(home.state_dir(), commit::SourceState::kCommitted);
    write_destination(home.state_dir(), commit::DestinationState::kRestored);
  }
  AgentProcess agent(credentials_, "max_migrations = 1", home);
  const Sleeper process(kAlice);
  const auto found = findings_of(agent, credentials_, process.pid());
  EXPECT_THAT(found, Contains("no-door"));
  EXPECT_THAT(found, Not(Contains("too-many-migrations")));
}

TEST_F(Limits, RefusedMigrationLeavesNoJournal) {
  AgentProcess agent(credentials_);
  const Sleeper process(kAlice);
  Client client(agent, credentials_, "operator");
  proto::Envelope request;
  request.mutable_migrate_request()->set_pid(process.pid());
  request.mutable_migrate_request()->set_destination(agent.endpoint().to_string());
  client.send(request);
  proto::Envelope answer;
  while (!answer.has_migrate_report() && !answer.has_failure()) answer = client.receive();
  EXPECT_EQ(answer.migrate_report().code(), "refused");
  EXPECT_THAT(answer.migrate_report().message(), HasSubstr("no-door"));
  EXPECT_THAT(journal::list(agent.state_dir()).value(), IsEmpty());
}

TEST_F(Limits, PreflightAloneLeavesNoJournal) {
  AgentProcess agent(credentials_);
  Client source(agent, credentials_, "agent");
  proto::Envelope request;
  const Uuid id = Uuid::random();
  request.mutable_preflight_request()->set_migration_id(id.bytes.data(), id.bytes.size());
  request.mutable_preflight_request()->set_source_agent("127.0.0.1:1");
  request.mutable_preflight_request()->add_members();
  source.send(request);
  proto::Envelope answer;
  while (!answer.has_preflight_reply() && !answer.has_failure()) answer = source.receive();
  EXPECT_TRUE(answer.has_preflight_reply()) << answer.ShortDebugString();
  EXPECT_THAT(journal::list(agent.state_dir()).value(), IsEmpty());
}

TEST_F(Limits, TooLongRequestEndsItsConnection) {
  AgentProcess agent(credentials_);
  Client client(agent, credentials_, "operator");
  proto::Envelope request;
  request.mutable_migrate_request()->set_destination(std::string(control::kMaxQuestionBytes, 'x'));
  try {
    client.send(request);
  } catch (const std::runtime_error&) {
    // The agent may have closed before all of it was sent.
  }
  EXPECT_TRUE(client.is_closed());
  EXPECT_TRUE(agent.wait_for_log("announces a message of"));
}

}  // namespace
}  // namespace gcr::daemon::test
