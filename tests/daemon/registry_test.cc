#include "migrate-agent/daemon/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gcr::agent {
namespace {

using testing::HasSubstr;

TEST(Registry, ClaimOfAnotherWorkerIsRefusedAndNamed) {
  Registry registry;
  const Uuid mine = Uuid::random();
  EXPECT_TRUE(registry.claim_process(1, mine, 100, 7));
  EXPECT_TRUE(registry.claim_process(1, mine, 100, 7));
  const Status refused = registry.claim_process(2, Uuid::random(), 100, 7);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kRefused);
  EXPECT_THAT(refused.error().message(), HasSubstr(mine.to_string()));
}

TEST(Registry, StartTimeTellsAReusedPidApart) {
  Registry registry;
  EXPECT_TRUE(registry.claim_process(1, Uuid::random(), 100, 7));
  EXPECT_TRUE(registry.claim_process(2, Uuid::random(), 100, 8));
}

TEST(Registry, ReleaseFreesWhatIsTheWorkersAndNothingElse) {
  Registry registry;
  const Uuid first = Uuid::random();
  const Uuid second = Uuid::random();
  EXPECT_TRUE(registry.claim_process(1, first, 100, 7));
  EXPECT_TRUE(registry.register_migration(1, first));
  EXPECT_TRUE(registry.claim_process(2, second, 200, 7));
  EXPECT_TRUE(registry.register_migration(2, second));
  registry.release(1);
  EXPECT_FALSE(registry.owner_of(first));
  EXPECT_EQ(registry.owner_of(second), 2U);
  EXPECT_TRUE(registry.claim_process(3, Uuid::random(), 100, 7));
  EXPECT_FALSE(registry.claim_process(3, Uuid::random(), 200, 7));
}

TEST(Registry, WorkerThatIsDoneWithItsProcessesKeepsItsMigration) {
  Registry registry;
  const Uuid first = Uuid::random();
  EXPECT_TRUE(registry.claim_process(1, first, 100, 7));
  EXPECT_TRUE(registry.register_migration(1, first));
  registry.release_processes(1);
  EXPECT_EQ(registry.owner_of(first), 1U);
  EXPECT_TRUE(registry.claim_process(2, Uuid::random(), 100, 7));
}

TEST(Registry, WorkerHasOneMigrationAndAMigrationOneWorker) {
  Registry registry;
  const Uuid migration = Uuid::random();
  EXPECT_TRUE(registry.register_migration(1, migration));
  EXPECT_FALSE(registry.register_migration(2, migration));
  EXPECT_FALSE(registry.register_migration(1, Uuid::random()));
  EXPECT_EQ(registry.owner_of(migration), 1U);
}

TEST(Registry, OneWorkerCannotClaimEverything) {
  Registry registry;
  const Uuid migration = Uuid::random();
  for (pid_t pid = 1; pid <= 4096; ++pid) {
    ASSERT_TRUE(registry.claim_process(1, migration, pid, 1));
  }
  const Status refused = registry.claim_process(1, migration, 4097, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace gcr::agent
