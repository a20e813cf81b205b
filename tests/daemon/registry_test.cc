#include "migrate-agent/daemon/listener/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gcr::daemon {
namespace {

using testing::HasSubstr;

/// By PID and start time.
journal::ProcessIds processes(std::initializer_list<std::pair<pid_t, std::uint64_t>> named) {
  journal::ProcessIds list;
  for (const auto& [pid, start_time] : named) {
    journal::ProcessId& process = *list.Add();
    process.set_pid(pid);
    process.set_start_time(start_time);
  }
  return list;
}

TEST(Registry, ClaimOfAnotherWorkerIsRefused) {
  Registry registry;
  const Uuid mine = Uuid::random();
  EXPECT_TRUE(registry.claim_processes(1, mine, processes({{100, 7}})));
  EXPECT_TRUE(registry.claim_processes(1, mine, processes({{100, 7}})));
  const Status refused = registry.claim_processes(2, Uuid::random(), processes({{100, 7}}));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kRefused);
  EXPECT_THAT(refused.error().message(), HasSubstr(mine.to_string()));
}

TEST(Registry, RefusalNamesASuspendedProcess) {
  Registry registry;
  const Uuid mine = Uuid::random();
  EXPECT_TRUE(registry.claim_processes(1, mine, processes({{100, 7}})));
  registry.mark_suspended(1);
  const Status refused = registry.check_processes(2, processes({{100, 7}}));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(),
            "process 100 is suspended (migration " + mine.to_string() + "): resume it first");
  registry.take_over_suspended(2, mine);
  EXPECT_TRUE(registry.check_processes(2, processes({{100, 7}})));
  registry.release(1);
  EXPECT_FALSE(registry.check_processes(1, processes({{100, 7}})));
  registry.release(2);
  EXPECT_TRUE(registry.check_processes(1, processes({{100, 7}})));
}

TEST(Registry, OnlyASuspendedJobIsTakenOver) {
  Registry registry;
  const Uuid mine = Uuid::random();
  EXPECT_TRUE(registry.claim_processes(1, mine, processes({{100, 7}})));
  registry.take_over_suspended(2, mine);
  EXPECT_FALSE(registry.check_processes(2, processes({{100, 7}})));
}

TEST(Registry, WorkerGetsAllProcessesOfAJobOrNone) {
  Registry registry;
  EXPECT_TRUE(registry.claim_processes(1, Uuid::random(), processes({{100, 7}})));
  EXPECT_FALSE(registry.claim_processes(2, Uuid::random(), processes({{99, 7}, {100, 7}})));
  EXPECT_TRUE(registry.check_processes(3, processes({{99, 7}})));
  EXPECT_FALSE(registry.check_processes(3, processes({{99, 7}, {100, 7}})));
  EXPECT_TRUE(registry.check_processes(1, processes({{99, 7}, {100, 7}})));
  const Uuid job = Uuid::random();
  EXPECT_TRUE(registry.claim_processes(3, job, processes({{98, 7}, {99, 7}})));
  EXPECT_TRUE(registry.claim_processes(3, job, processes({{99, 7}, {98, 7}, {97, 7}})));
  EXPECT_FALSE(registry.check_processes(1, processes({{97, 7}})));
}

TEST(Registry, StartTimeDistinguishesReusedPids) {
  Registry registry;
  EXPECT_TRUE(registry.claim_processes(1, Uuid::random(), processes({{100, 7}})));
  EXPECT_TRUE(registry.claim_processes(2, Uuid::random(), processes({{100, 8}})));
}

TEST(Registry, ReleaseFreesOnlyTheWorkersClaims) {
  Registry registry;
  const Uuid first = Uuid::random();
  const Uuid second = Uuid::random();
  EXPECT_TRUE(registry.claim_processes(1, first, processes({{100, 7}})));
  EXPECT_TRUE(registry.register_migration(1, first));
  EXPECT_TRUE(registry.claim_processes(2, second, processes({{200, 7}})));
  EXPECT_TRUE(registry.register_migration(2, second));
  registry.release(1);
  EXPECT_FALSE(registry.owner_of(first));
  EXPECT_EQ(registry.owner_of(second), 2U);
  EXPECT_TRUE(registry.claim_processes(3, Uuid::random(), processes({{100, 7}})));
  EXPECT_FALSE(registry.claim_processes(3, Uuid::random(), processes({{200, 7}})));
}

TEST(Registry, WorkerKeepsItsMigrationAfterItsProcesses) {
  Registry registry;
  const Uuid first = Uuid::random();
  EXPECT_TRUE(registry.claim_processes(1, first, processes({{100, 7}})));
  EXPECT_TRUE(registry.register_migration(1, first));
  registry.release_processes(1);
  EXPECT_EQ(registry.owner_of(first), 1U);
  EXPECT_TRUE(registry.claim_processes(2, Uuid::random(), processes({{100, 7}})));
}

TEST(Registry, WorkerHasOneMigrationAndAMigrationOneWorker) {
  Registry registry;
  const Uuid migration = Uuid::random();
  EXPECT_TRUE(registry.register_migration(1, migration));
  EXPECT_FALSE(registry.register_migration(2, migration));
  EXPECT_FALSE(registry.register_migration(1, Uuid::random()));
  EXPECT_EQ(registry.owner_of(migration), 1U);
}

TEST(Registry, ClaimsOfOneWorkerAreLimited) {
  Registry registry;
  const Uuid migration = Uuid::random();
  for (pid_t pid = 1; pid <= 4096; ++pid) {
    ASSERT_TRUE(registry.claim_processes(1, migration, processes({{pid, 1}})));
  }
  const Status refused = registry.claim_processes(1, migration, processes({{4097, 1}}));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace gcr::daemon
