// Migrations whose worker or daemon has died: the daemon and its workers as real processes, killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "migrate-agent/linux/procfs/procfs.h"
#include "tests/daemon/agent_process.h"
#include "tests/daemon/journals.h"
#include "tests/support/damage.h"

namespace gcr::daemon::test {
namespace {

using commit::DestinationState;
using commit::SourceState;
using journal::Began;
using testing::HasSubstr;

class RecoveryTest : public testing::Test {
 protected:
  std::string text_of_end(const Uuid& id, journal::Role role) {
    return last_record(home_.state_dir(), id, role).finished().text();
  }
  std::filesystem::path socket_of(const Uuid& id) {
    return home_.runtime_dir() / "workers" / (id.to_string() + "-source");
  }

  control::test::Credentials credentials_;
  AgentHome home_;
};

/// A client whose migration has a journal, and the worker that owns it.
struct Keeping {
  Keeping(const AgentProcess& agent, control::test::Credentials& credentials)
      : client(agent, credentials, "operator") {
    const std::string bytes = client.ask("journal", 4711, 5).started().migration_id();
    std::copy_n(bytes.begin(), id.bytes.size(), id.bytes.begin());
    worker = std::stoi(client.receive().event().text());
  }
  Client client;
  Uuid id;
  int worker = -1;
};

TEST_F(RecoveryTest, UnfinishedJournalIsRecoveredAtStart) {
  const Uuid unfinished = write_source(home_.state_dir(), SourceState::kAwaiting);
  const Uuid finished = write_source(home_.state_dir(), SourceState::kUndone);
  AgentProcess agent(credentials_, {}, home_);
  ASSERT_TRUE(agent.wait_for_log("recovers " + unfinished.to_string() + "-source"));
  ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
  EXPECT_EQ(text_of_end(unfinished, Began::SOURCE), "by recovery");
  EXPECT_FALSE(agent.has_logged("recovers " + finished.to_string()));
  EXPECT_FALSE(std::filesystem::exists(socket_of(unfinished)));
}

TEST_F(RecoveryTest, FailedRecoveryIsRetried) {
  const Uuid id = write_source(home_.state_dir(), SourceState::kWorking, {.command = "fail 2"});
  AgentProcess agent(credentials_, {}, home_);
  EXPECT_TRUE(agent.wait_for_log("ended with status 1"));
  EXPECT_TRUE(agent.wait_for_log("ended with status 1"));
  EXPECT_TRUE(agent.wait_for_log("ended with status 0"));
  EXPECT_EQ(text_of_end(id, Began::SOURCE), "by recovery");
}

TEST_F(RecoveryTest, KilledRecoveryIsRetried) {
  const Uuid id = write_destination(home_.state_dir(), DestinationState::kRestored);
  AgentProcess agent(credentials_, {}, home_);
  const std::string recovers = "recovers " + id.to_string() + "-destination";
  const int first = agent.number_in_log(recovers, "worker ");
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  EXPECT_NE(agent.number_in_log(recovers, "worker "), first);
}

TEST_F(RecoveryTest, MigrationOfAKilledWorkerIsRecovered) {
  AgentProcess agent(credentials_, {}, home_);
  Keeping killed(agent, credentials_);
  ASSERT_EQ(::kill(killed.worker, SIGKILL), 0);
  ASSERT_TRUE(agent.wait_for_log("recovers " + killed.id.to_string() + "-source"));
  ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
  EXPECT_EQ(text_of_end(killed.id, Began::SOURCE), "by recovery");
  EXPECT_FALSE(std::filesystem::exists(socket_of(killed.id)));
  EXPECT_TRUE(std::filesystem::is_empty(home_.runtime_dir() / "outgoing"));
}

TEST_F(RecoveryTest, ProcessInRecoveryCannotBeMigrated) {
  write_source(home_.state_dir(), SourceState::kCommitted, {.pid = 4711, .start_time = 5});
  AgentProcess agent(credentials_, {}, home_);
  Client client(agent, credentials_, "operator");
  const auto refused = client.ask("claim", 4711, 5).event();
  EXPECT_EQ(refused.phase(), "refused");
  EXPECT_THAT(refused.text(), HasSubstr("is already being migrated"));
}

TEST_F(RecoveryTest, ProcessCanMigrateAgainAfterItsRecovery) {
  write_source(home_.state_dir(), SourceState::kWorking, {.pid = 4711, .start_time = 5});
  AgentProcess agent(credentials_, {}, home_);
  ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
  Client client(agent, credentials_, "operator");
  EXPECT_EQ(client.ask("claim", 4711, 5).event().phase(), "claimed");
}

proto::Envelope resume_request() {
  proto::Envelope request;
  request.mutable_resume_request()->set_pid(4711);
  return request;
}

TEST_F(RecoveryTest, SuspendedJobIsCheckedAndRefusedToOthers) {
  const Uuid id =
      write_source(home_.state_dir(), SourceState::kSuspended, {.pid = 4711, .start_time = 5});
  AgentProcess agent(credentials_, {}, home_);
  ASSERT_TRUE(agent.wait_for_log("recovers " + id.to_string() + "-source"));
  ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
  Client client(agent, credentials_, "operator");
  const auto refused = client.ask("claim", 4711, 5).event();
  EXPECT_EQ(refused.phase(), "refused");
  EXPECT_THAT(refused.text(), HasSubstr("is suspended (migration " + id.to_string()));
}

TEST_F(RecoveryTest, OneWorkerAtATimeResumesASuspendedJob) {
  const Uuid id =
      write_source(home_.state_dir(), SourceState::kSuspended, {.pid = 4711, .start_time = 5});
  AgentProcess agent(credentials_, {}, home_);
  ASSERT_TRUE(agent.wait_for_log("recovers " + id.to_string() + "-source"));
  ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
  Client first(agent, credentials_, "operator");
  EXPECT_EQ(first.call(resume_request()).event().phase(), "taken");
  Client second(agent, credentials_, "operator");
  const auto refused = second.call(resume_request()).event();
  EXPECT_EQ(refused.phase(), "refused");
  EXPECT_THAT(refused.text(), HasSubstr("is already being migrated"));
  second.release();
  first.release();
  EXPECT_TRUE(agent.wait_for_log("recovers " + id.to_string() + "-source"));
}

TEST_F(RecoveryTest, RecoveryDelayedByAResumeDropsItsClaim) {
  const Uuid id =
      write_source(home_.state_dir(), SourceState::kSuspended, {.pid = 4711, .start_time = 5});
  auto log = commit::SourceLog::open(journal::path_of(home_.state_dir(), id, Began::SOURCE),
                                     journal::Lock::kWait);
  ASSERT_TRUE(log);
  AgentProcess agent(credentials_, {}, home_);
  ASSERT_TRUE(agent.wait_for_log("recovers " + id.to_string() + "-source"));
  Client resuming(agent, credentials_, "operator");
  EXPECT_EQ(resuming.call(resume_request()).event().phase(), "taken");
  journal::Record record;
  record.mutable_resuming();
  ASSERT_TRUE(log->advance(commit::SourceEvent::kResuming, std::move(record)));
  ASSERT_TRUE(log->advance(commit::SourceEvent::kResumed, finished("runs here", 4711)));
  resuming.release();
  ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
  Client client(agent, credentials_, "operator");
  EXPECT_EQ(client.ask("claim", 4711, 5).event().phase(), "claimed");
}

TEST_F(RecoveryTest, EndOfAMemberTriggersARecovery) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  const auto stat = procfs::read_stat(child);
  ASSERT_TRUE(stat);
  const Uuid id = write_source(home_.state_dir(), SourceState::kSuspended,
                               {.pid = child, .start_time = stat->start_time});
  AgentProcess agent(credentials_, {}, home_);
  ASSERT_TRUE(agent.wait_for_log("recovers " + id.to_string() + "-source"));
  ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_TRUE(agent.wait_for_log("recovers " + id.to_string() + "-source"));
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST_F(RecoveryTest, DaemonStartsWhileAnOldWorkerLives) {
  auto first = std::make_unique<AgentProcess>(credentials_, std::string(), home_);
  home_.port = first->port();
  Keeping kept(*first, credentials_);
  first->kill_daemon();
  AgentProcess second(credentials_, {}, home_);
  EXPECT_EQ(second.port(), home_.port);
  ASSERT_TRUE(second.wait_for_log("recovers " + kept.id.to_string() + "-source"));
  Client human(second, credentials_, "operator");
  proto::Envelope cancel;
  cancel.mutable_cancel_request()->set_migration_id(to_bytes(kept.id));
  EXPECT_TRUE(human.call(cancel).has_cancel_reply());
  EXPECT_EQ(kept.client.receive().migrate_report().code(), "cancelled");
  ASSERT_TRUE(second.wait_for_log("ended with status 0"));
  EXPECT_EQ(text_of_end(kept.id, Began::SOURCE), "by its worker");
}

TEST_F(RecoveryTest, StoppingDaemonStartsNoRecovery) {
  AgentProcess agent(credentials_, {}, home_);
  Keeping kept(agent, credentials_);
  ASSERT_EQ(::kill(agent.pid(), SIGTERM), 0);
  ASSERT_TRUE(agent.wait_for_log("1 workers are still running"));
  ASSERT_EQ(::kill(kept.worker, SIGKILL), 0);
  EXPECT_EQ(agent.wait_for_end(), 0);
  EXPECT_FALSE(agent.has_logged("recovers"));
  EXPECT_TRUE(last_record(home_.state_dir(), kept.id, Began::SOURCE).has_began());
}

TEST_F(RecoveryTest, StoppingDaemonWaitsForARunningRecovery) {
  const Uuid id = write_destination(home_.state_dir(), DestinationState::kRestored);
  AgentProcess agent(credentials_, {}, home_);
  const int worker = agent.number_in_log("recovers " + id.to_string(), "worker ");
  ASSERT_EQ(::kill(agent.pid(), SIGTERM), 0);
  ASSERT_TRUE(agent.wait_for_log("1 workers are still running"));
  ASSERT_EQ(::kill(worker, SIGKILL), 0);
  EXPECT_EQ(agent.wait_for_end(), 0);
}

TEST_F(RecoveryTest, DamagedJournalIsLeftToAnOperator) {
  const Uuid id = write_source(home_.state_dir(), SourceState::kCommitted);
  const auto path = journal::path_of(home_.state_dir(), id, Began::SOURCE);
  gcr::test::damage_byte(path, journal::kSlotBytes + 100);
  AgentProcess agent(credentials_, {}, home_);
  EXPECT_TRUE(agent.wait_for_log("needs an operator"));
  Client client(agent, credentials_, "operator");
  proto::Envelope request;
  request.mutable_list_request();
  const proto::Envelope answer = client.call(request);
  ASSERT_EQ(answer.list_reply().migrations_size(), 1);
  EXPECT_EQ(answer.list_reply().migrations(0).state(), "damaged");
  EXPECT_TRUE(answer.list_reply().migrations(0).operator_needed());
  EXPECT_FALSE(agent.has_logged("recovers"));
}

TEST_F(RecoveryTest, NameOfNoJournalIsRefused) {
  const AgentProcess agent(credentials_, {}, home_);
  const std::string config = home_.folder->path() + "/agent.toml";
  const Finished ended =
      run_to_end({GCR_TEST_AGENT, "--worker", "--config", config, "--recover", "../../etc/passwd"});
  EXPECT_EQ(ended.exit_status, 1);
}

}  // namespace
}  // namespace gcr::daemon::test
