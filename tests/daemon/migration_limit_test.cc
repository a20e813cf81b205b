// max_migrations: an agent takes part in so many migrations at a time, in each role.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/daemon/agent_process.h"

namespace gcr::agent::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class MigrationLimit : public testing::Test {
 protected:
  control::test::Credentials credentials_;
  AgentProcess agent_{credentials_, "max_migrations = 1"};
};

TEST_F(MigrationLimit, OneMoreAwayFromHereIsRefusedUntilOneHasEnded) {
  {
    Client first(agent_, credentials_, "operator");
    EXPECT_EQ(first.ask("claim", 4711, 5).event().phase(), "claimed");
    Client second(agent_, credentials_, "operator");
    const auto refused = second.ask("claim", 4712, 5).event();
    EXPECT_EQ(refused.phase(), "refused");
    EXPECT_THAT(refused.text(),
                AllOf(HasSubstr("source of 1 migrations already"), HasSubstr("max_migrations")));
    second.release();
    ASSERT_TRUE(agent_.wait_for_log("ended with status 0"));
    first.release();
    ASSERT_TRUE(agent_.wait_for_log("ended with status 0"));
  }
  Client third(agent_, credentials_, "operator");
  EXPECT_EQ(third.ask("claim", 4713, 5).event().phase(), "claimed");
}

TEST_F(MigrationLimit, EachRoleHasItsOwn) {
  Client away(agent_, credentials_, "operator");
  EXPECT_EQ(away.ask("claim", 4711, 5).event().phase(), "claimed");
  Client here(agent_, credentials_, "agent");
  EXPECT_EQ(here.offer(Uuid::random()).event().phase(), "registered");
  Client another(agent_, credentials_, "agent");
  const auto refused = another.offer(Uuid::random()).event();
  EXPECT_EQ(refused.phase(), "refused");
  EXPECT_THAT(refused.text(), HasSubstr("destination of 1 migrations already"));
}

}  // namespace
}  // namespace gcr::agent::test
