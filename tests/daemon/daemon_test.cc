// The daemon and its workers as real processes: which worker gets a connection, who owns a process,
// and what remains when a worker crashes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/daemon/agent_process.h"

namespace gcr::daemon::test {
namespace {

using control::ConnectionKind;
using testing::HasSubstr;

class DaemonTest : public testing::Test {
 protected:
  control::test::Credentials credentials_;
  AgentProcess agent_{credentials_};
};

TEST_F(DaemonTest, EachControlConnectionGetsItsOwnProcess) {
  Client first(agent_, credentials_, "operator");
  Client second(agent_, credentials_, "operator");
  const int first_pid = std::stoi(first.ask("pid").event().text());
  const int second_pid = std::stoi(second.ask("pid").event().text());
  EXPECT_NE(first_pid, second_pid);
  EXPECT_NE(first_pid, agent_.pid());
  EXPECT_EQ(::getsid(first_pid), first_pid);
}

TEST_F(DaemonTest, DataConnectionReachesTheWorkerOfItsMigration) {
  const Uuid one = Uuid::random();
  const Uuid two = Uuid::random();
  Client first(agent_, credentials_, "agent");
  Client second(agent_, credentials_, "agent");
  ASSERT_EQ(first.offer(one).event().phase(), "registered");
  ASSERT_EQ(second.offer(two).event().phase(), "registered");
  PlainConnection to_second(agent_.port());
  to_second.send_preface(ConnectionKind::kData, two);
  to_second.send("for two");
  to_second.close();
  PlainConnection to_first(agent_.port());
  to_first.send_preface(ConnectionKind::kData, one);
  to_first.send("for one");
  to_first.close();
  EXPECT_EQ(first.receive().event().text(), "for one");
  EXPECT_EQ(second.receive().event().text(), "for two");
}

TEST_F(DaemonTest, DataConnectionOfAnUnknownMigrationIsClosed) {
  PlainConnection stray(agent_.port());
  stray.send_preface(ConnectionKind::kData, Uuid::random());
  EXPECT_TRUE(stray.ends_without_a_word());
  EXPECT_TRUE(agent_.wait_for_log("no migration"));
}

TEST_F(DaemonTest, MigrationIsRegisteredOnce) {
  const Uuid migration = Uuid::random();
  Client first(agent_, credentials_, "agent");
  Client second(agent_, credentials_, "agent");
  ASSERT_EQ(first.offer(migration).event().phase(), "registered");
  const auto refused = second.offer(migration).event();
  EXPECT_EQ(refused.phase(), "refused");
  EXPECT_THAT(refused.text(), HasSubstr(migration.to_string()));
}

TEST_F(DaemonTest, ClaimOfAProcessEndsWithItsWorker) {
  Client first(agent_, credentials_, "operator");
  ASSERT_EQ(first.ask("claim", 4711, 5).event().phase(), "claimed");
  Client second(agent_, credentials_, "operator");
  const auto refused = second.ask("claim", 4711, 5).event();
  EXPECT_EQ(refused.phase(), "refused");
  EXPECT_THAT(refused.text(), HasSubstr("process 4711 is already being migrated"));
  Client reused_pid(agent_, credentials_, "operator");
  EXPECT_EQ(reused_pid.ask("claim", 4711, 6).event().phase(), "claimed");
  first.release();
  EXPECT_TRUE(first.is_closed());
  ASSERT_TRUE(agent_.wait_for_log("ended with status 0"));
  Client third(agent_, credentials_, "operator");
  EXPECT_EQ(third.ask("claim", 4711, 5).event().phase(), "claimed");
}

TEST_F(DaemonTest, CrashedWorkerEndsOnlyItsOwnMigration) {
  Client bystander(agent_, credentials_, "operator");
  ASSERT_EQ(bystander.ask("claim", 1, 1).event().phase(), "claimed");
  Client victim(agent_, credentials_, "operator");
  EXPECT_THROW(victim.ask("crash"), std::runtime_error);
  EXPECT_TRUE(agent_.wait_for_log("was killed by signal 9"));
  Client later(agent_, credentials_, "operator");
  EXPECT_EQ(later.ask("claim", 1, 1).event().phase(), "refused");
  bystander.release();
  EXPECT_TRUE(bystander.is_closed());
  EXPECT_TRUE(agent_.wait_for_log("ended with status 0"));
}

TEST_F(DaemonTest, ExceptionInAWorkerReachesThePeerAsAFailure) {
  Client client(agent_, credentials_, "operator");
  const auto answer = client.ask("throw");
  ASSERT_TRUE(answer.has_failure());
  EXPECT_EQ(answer.failure().code(), "internal");
  EXPECT_THAT(answer.failure().message(), HasSubstr("thrown by the role"));
}

TEST_F(DaemonTest, DaemonReapsOrphansOfItsWorkers) {
  Client client(agent_, credentials_, "operator");
  const int child = std::stoi(client.ask("leave-child").event().text());
  EXPECT_TRUE(client.is_closed());
  ASSERT_TRUE(agent_.wait_for_log("ended with status 0"));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_TRUE(agent_.wait_for_log("process " + std::to_string(child) + ", left by a worker"));
  EXPECT_EQ(::kill(child, 0), -1);
}

TEST_F(DaemonTest, CertificateRolesAreEnforced) {
  Client agent(agent_, credentials_, "agent");
  const auto no_migration = agent.ask("pid");
  EXPECT_EQ(no_migration.failure().code(), "permission-denied");
  EXPECT_THAT(no_migration.failure().message(), HasSubstr("gcr:role:operator"));
  Client human(agent_, credentials_, "operator");
  const auto no_process = human.offer(Uuid::random());
  EXPECT_EQ(no_process.failure().code(), "permission-denied");
  EXPECT_THAT(no_process.failure().message(), HasSubstr("gcr:role:agent"));
}

TEST_F(DaemonTest, WrongFirstMessageIsRefused) {
  Client client(agent_, credentials_, "agent");
  client.release();
  const auto answer = client.receive();
  EXPECT_EQ(answer.failure().code(), "protocol");
  EXPECT_TRUE(client.is_closed());
}

TEST_F(DaemonTest, UnknownClientsGetNoWorker) {
  control::test::Credentials strangers;
  const control::TlsFiles theirs = strangers.issue({});
  control::TlsFiles mixed = credentials_.issue({});
  mixed.certificate = theirs.certificate;
  mixed.key = theirs.key;
  EXPECT_THROW(Client(agent_, control::make_tls_context(mixed).value()), std::runtime_error);
  EXPECT_TRUE(agent_.wait_for_log("is not accepted here"));
}

TEST_F(DaemonTest, TerminationWaitsForWorkersAndRefusesNewOnes) {
  const Uuid migration = Uuid::random();
  Client busy(agent_, credentials_, "agent");
  ASSERT_EQ(busy.offer(migration).event().phase(), "registered");
  ASSERT_EQ(::kill(agent_.pid(), SIGTERM), 0);
  ASSERT_TRUE(agent_.wait_for_log("1 workers are still running"));
  EXPECT_THROW(Client(agent_, credentials_, "operator"), std::runtime_error);
  PlainConnection data(agent_.port());
  data.send_preface(ConnectionKind::kData, migration);
  data.send("last");
  data.close();
  EXPECT_EQ(busy.receive().event().text(), "last");
  EXPECT_TRUE(busy.is_closed());
  EXPECT_EQ(agent_.wait_for_end(), 0);
}

TEST_F(DaemonTest, SecondTerminationEndsTheDaemonButNoWorker) {
  Client busy(agent_, credentials_, "operator");
  const int worker = std::stoi(busy.ask("pid").event().text());
  ASSERT_EQ(::kill(agent_.pid(), SIGTERM), 0);
  ASSERT_TRUE(agent_.wait_for_log("1 workers are still running"));
  ASSERT_EQ(::kill(agent_.pid(), SIGTERM), 0);
  EXPECT_EQ(agent_.wait_for_end(), 0);
  EXPECT_EQ(::kill(worker, 0), 0);
  busy.release();
  EXPECT_TRUE(busy.is_closed());
}

TEST_F(DaemonTest, IdleDaemonEndsAtOnceOnTermination) {
  ASSERT_EQ(::kill(agent_.pid(), SIGTERM), 0);
  EXPECT_EQ(agent_.wait_for_end(), 0);
}

}  // namespace
}  // namespace gcr::daemon::test
