// max_migrations: an agent takes part in at most so many migrations at a time, in each role, and in
// at most max_migrations_per_user for one operator or local user.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/daemon/agent_process.h"
#include "tests/daemon/journals.h"

namespace gcr::daemon::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class MigrationLimit : public testing::Test {
 protected:
  control::test::Credentials credentials_;
  AgentProcess agent_{credentials_, "max_migrations = 1"};
};

TEST_F(MigrationLimit, ExcessOutgoingMigrationIsRefused) {
  {
    Client first(agent_, credentials_, "operator");
    EXPECT_EQ(first.ask("claim", 4711, 5).event().phase(), "claimed");
    Client second(agent_, credentials_, "operator");
    const auto refused = second.ask("claim", 4712, 5).event();
    EXPECT_EQ(refused.phase(), "refused");
    EXPECT_THAT(refused.text(), AllOf(HasSubstr("already the source of 1 migrations"),
                                      HasSubstr("max_migrations")));
    second.release();
    ASSERT_TRUE(agent_.wait_for_log("ended with status 0"));
    first.release();
    ASSERT_TRUE(agent_.wait_for_log("ended with status 0"));
  }
  Client third(agent_, credentials_, "operator");
  EXPECT_EQ(third.ask("claim", 4713, 5).event().phase(), "claimed");
}

TEST_F(MigrationLimit, EachRoleHasItsOwnLimit) {
  Client away(agent_, credentials_, "operator");
  EXPECT_EQ(away.ask("claim", 4711, 5).event().phase(), "claimed");
  Client here(agent_, credentials_, "agent");
  EXPECT_EQ(here.offer(Uuid::random()).event().phase(), "registered");
  Client another(agent_, credentials_, "agent");
  const auto refused = another.offer(Uuid::random()).event();
  EXPECT_EQ(refused.phase(), "refused");
  EXPECT_THAT(refused.text(), HasSubstr("already the destination of 1 migrations"));
}

TEST_F(MigrationLimit, RecoveryIgnoresTheLimit) {
  AgentHome home;
  const Uuid id = write_destination(home.state_dir(), commit::DestinationState::kRestored,
                                    {.peer_name = "agent"});
  AgentProcess agent(credentials_, "max_migrations = 1", home);
  Client away(agent, credentials_, "operator");
  EXPECT_EQ(away.ask("claim", 4711, 5).event().phase(), "claimed");
  proto::Envelope commit;
  commit.mutable_commit_request()->set_migration_id(to_bytes(id));
  EXPECT_EQ(Client(agent, credentials_, "agent").call(commit).commit_reply().pid(), kRestoredPid);
}

class LimitOfOneUser : public testing::Test {
 protected:
  proto::Event claim(const char* name, int pid) {
    const gcr::test::LeafOptions leaf{.role = "operator", .common_name = name};
    clients_.push_back(std::make_unique<Client>(agent_.endpoint(), credentials_.context(leaf)));
    return clients_.back()->ask("claim", pid, 5).event();
  }
  proto::Event offer(const char* ordered_by) {
    clients_.push_back(std::make_unique<Client>(agent_, credentials_, "agent"));
    return clients_.back()->offer(Uuid::random(), ordered_by).event();
  }

  control::test::Credentials credentials_;
  AgentProcess agent_{credentials_, "max_migrations = 4"};
  std::vector<std::unique_ptr<Client>> clients_;
};

TEST_F(LimitOfOneUser, IsHalfOfTheTotal) {
  EXPECT_EQ(claim("alice", 4711).phase(), "claimed");
  EXPECT_EQ(claim("alice", 4712).phase(), "claimed");
  const auto refused = claim("alice", 4713);
  EXPECT_EQ(refused.phase(), "refused");
  EXPECT_THAT(refused.text(), AllOf(HasSubstr("source of 2 migrations that \"alice\" ordered"),
                                    HasSubstr("max_migrations_per_user")));
  EXPECT_EQ(claim("bob", 4714).phase(), "claimed");
}

TEST_F(LimitOfOneUser, AppliesAtTheDestinationToo) {
  EXPECT_EQ(offer("uid 1000").phase(), "registered");
  EXPECT_EQ(offer("uid 1000").phase(), "registered");
  EXPECT_EQ(offer("uid 1000").phase(), "refused");
  EXPECT_EQ(offer("uid 1001").phase(), "registered");
}

}  // namespace
}  // namespace gcr::daemon::test
