// An agent that may not send processes here learns nothing and leaves nothing, in every role.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/users.h"
#include "tests/daemon/agent_process.h"

namespace gcr::daemon::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class PeersHostile : public testing::Test {
 protected:
  /// The agent's reply to this agent's request, after its keep-alives.
  proto::Envelope answer_to(const AgentProcess& agent, const std::string& name, bool only,
                            const proto::PreflightRequest& about = {}) {
    Client source(agent, credentials_.context({.role = "agent", .common_name = name}));
    proto::Envelope request;
    proto::PreflightRequest& preflight = *request.mutable_preflight_request();
    preflight = about;
    if (preflight.members().empty()) preflight.add_members();
    const Uuid id = Uuid::random();
    preflight.set_migration_id(id.bytes.data(), id.bytes.size());
    preflight.set_source_agent(":7411");
    preflight.set_only(only);
    source.send(request);
    for (;;) {
      proto::Envelope answer = source.receive();
      if (!answer.has_alive()) return answer;
    }
  }

  control::test::Credentials credentials_;
};

TEST_F(PeersHostile, UnlistedAgentIsRefusedFirst) {
  const AgentProcess agent(credentials_, "[[peers]]\nname = \"node2\"");
  for (const bool only : {false, true}) {
    const auto refused = answer_to(agent, "node3", only);
    EXPECT_EQ(refused.failure().code(), "permission-denied");
    EXPECT_THAT(refused.failure().message(), AllOf(HasSubstr("\"node3\""), HasSubstr("[[peers]]")));
    EXPECT_TRUE(answer_to(agent, "node2", only).has_preflight_reply());
  }
}

TEST_F(PeersHostile, WithoutPeersEveryAgentMaySend) {
  const AgentProcess agent(credentials_);
  EXPECT_TRUE(answer_to(agent, "node3", true).has_preflight_reply());
}

TEST_F(PeersHostile, LocalUserMustBeTheSameUserHere) {
  const AgentProcess agent(credentials_);
  proto::PreflightRequest about;
  about.set_ordered_by("uid 4242");
  about.add_members()->set_uid(4242);
  about.mutable_members(0)->set_user("root");  // 4242 has no name here
  EXPECT_EQ(answer_to(agent, "node2", true, about).failure().code(), "permission-denied");
  about.mutable_members(0)->clear_user();
  EXPECT_EQ(answer_to(agent, "node2", true, about).failure().code(), "permission-denied");
  about.mutable_members(0)->set_uid(1);
  about.mutable_members(0)->set_user(user_name(1));
  EXPECT_TRUE(answer_to(agent, "node2", true, about).has_preflight_reply());
}

}  // namespace
}  // namespace gcr::daemon::test
