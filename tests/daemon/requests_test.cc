// Requests to an agent that are answered from its journals, and by the workers that own them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "tests/daemon/agent_process.h"
#include "tests/daemon/journals.h"

namespace gcr::daemon::test {
namespace {

using commit::DestinationState;
using commit::SourceState;
using proto::OutcomeReply;
using testing::HasSubstr;

class RequestsTest : public testing::Test {
 protected:
  proto::Envelope ask(const proto::Envelope& request, const char* role = "operator") {
    Client client(agent_, credentials_, role);
    return client.call(request);
  }
  proto::Envelope cancel(const Uuid& id) {
    proto::Envelope request;
    request.mutable_cancel_request()->set_migration_id(to_bytes(id));
    return ask(request);
  }
  proto::Envelope go_on(const Uuid& id) {
    proto::Envelope request;
    request.mutable_continue_request()->set_migration_id(to_bytes(id));
    return ask(request);
  }
  proto::Envelope adjust(const Uuid& id, double downtime_limit_ms) {
    proto::Envelope request;
    request.mutable_adjust_request()->set_migration_id(to_bytes(id));
    request.mutable_adjust_request()->set_downtime_limit_ms(downtime_limit_ms);
    return ask(request);
  }
  proto::Envelope status(const Uuid& id) {
    proto::Envelope request;
    request.mutable_status_request()->set_migration_id(to_bytes(id));
    return ask(request);
  }
  proto::ListReply list(bool finished) {
    proto::Envelope request;
    request.mutable_list_request()->set_finished(finished);
    return ask(request).list_reply();
  }
  proto::Envelope outcome(const Uuid& id, bool of_vote = false, const char* agent = "agent") {
    proto::Envelope request;
    request.mutable_outcome_request()->set_migration_id(to_bytes(id));
    request.mutable_outcome_request()->set_of_vote(of_vote);
    return ask(request, agent);
  }
  proto::Envelope commit(const Uuid& id) {
    proto::Envelope request;
    request.mutable_commit_request()->set_migration_id(to_bytes(id));
    return ask(request, "agent");
  }

  control::test::Credentials credentials_;
  AgentProcess agent_{credentials_, "peer_silence_ms = 60000"};
  std::filesystem::path state_ = agent_.state_dir();
  Beginning with_agent_{.peer_name = "agent"};  ///< the common name of Client's agents
};

TEST_F(RequestsTest, CancelReachesTheWorker) {
  Client migrating(agent_, credentials_, "operator");
  const auto started = migrating.ask("journal", 4711, 5);
  migrating.receive();
  proto::Envelope request;
  request.mutable_cancel_request()->set_migration_id(started.started().migration_id());
  EXPECT_TRUE(ask(request).has_cancel_reply());
  const auto report = migrating.receive().migrate_report();
  EXPECT_EQ(report.code(), "cancelled");
  EXPECT_EQ(report.message(), "the operator \"operator\" cancelled it");
}

TEST_F(RequestsTest, CancelOfAnUndoneMigrationIsAccepted) {
  EXPECT_TRUE(cancel(write_source(state_, SourceState::kAborted)).has_cancel_reply());
  EXPECT_TRUE(cancel(write_source(state_, SourceState::kUndone)).has_cancel_reply());
}

TEST_F(RequestsTest, CancelWithoutAWorkerIsLeftToRecovery) {
  EXPECT_TRUE(cancel(write_source(state_, SourceState::kAwaiting)).has_cancel_reply());
}

TEST_F(RequestsTest, CancelComesTooLateAfterTheCommit) {
  for (const SourceState state : {SourceState::kCommitted, SourceState::kConfirmed}) {
    const auto failure = cancel(write_source(state_, state, {.peer = "node2:7411"})).failure();
    EXPECT_EQ(failure.code(), "refused");
    EXPECT_THAT(failure.message(), HasSubstr("continues at node2:7411"));
  }
}

TEST_F(RequestsTest, OnlyTheSourceAcceptsCancel) {
  const Uuid id = write_destination(state_, DestinationState::kBuilding, {.peer = "node1:7411"});
  const auto failure = cancel(id).failure();
  EXPECT_EQ(failure.code(), "refused");
  EXPECT_THAT(failure.message(), HasSubstr("the agent at node1:7411"));
}

TEST_F(RequestsTest, OrdersNeedARunningCopy) {
  for (const SourceState state :
       {SourceState::kAwaiting, SourceState::kCommitted, SourceState::kUndone}) {
    const Uuid id = write_source(state_, state);
    for (const auto& failure : {go_on(id).failure(), adjust(id, 100).failure()}) {
      EXPECT_EQ(failure.code(), "refused");
      EXPECT_THAT(failure.message(), HasSubstr("accepts no more orders"));
    }
  }
  // No worker owns this one: recovery undoes it.
  EXPECT_THAT(go_on(write_source(state_, SourceState::kWorking)).failure().message(),
              HasSubstr("is being rolled back"));
}

TEST_F(RequestsTest, OnlyTheSourceAcceptsOrders) {
  const Uuid id = write_destination(state_, DestinationState::kBuilding, {.peer = "node1:7411"});
  for (const auto& failure : {go_on(id).failure(), adjust(id, 100).failure()}) {
    EXPECT_EQ(failure.code(), "refused");
    EXPECT_THAT(failure.message(), HasSubstr("to its source, the agent at node1:7411"));
  }
}

TEST_F(RequestsTest, ImpossibleLimitsAreRefused) {
  const Uuid id = write_source(state_, SourceState::kWorking);
  for (const double limit_ms : {0.0, -5.0, 1e9, std::nan(""), HUGE_VAL}) {
    EXPECT_EQ(adjust(id, limit_ms).failure().code(), "invalid-argument") << limit_ms;
  }
  proto::Envelope nothing;
  nothing.mutable_adjust_request()->set_migration_id(to_bytes(id));
  EXPECT_EQ(ask(nothing).failure().message(), "the request changes nothing");
}

TEST_F(RequestsTest, UnknownMigrationIsNotFound) {
  EXPECT_EQ(go_on(Uuid::random()).failure().code(), "not-found");
  EXPECT_EQ(adjust(Uuid::random(), 100).failure().code(), "not-found");
  EXPECT_EQ(cancel(Uuid::random()).failure().code(), "not-found");
  EXPECT_EQ(status(Uuid::random()).failure().code(), "not-found");
  EXPECT_EQ(commit(Uuid::random()).failure().code(), "not-found");
}

TEST_F(RequestsTest, IdOfWrongLengthIsRefused) {
  proto::Envelope request;
  request.mutable_status_request()->set_migration_id("short");
  EXPECT_EQ(ask(request).failure().code(), "invalid-argument");
}

TEST_F(RequestsTest, StatusCombinesJournalAndWorker) {
  Client migrating(agent_, credentials_, "operator");
  const auto started = migrating.ask("journal", 4711, 5);
  migrating.receive();
  proto::Envelope request;
  request.mutable_status_request()->set_migration_id(started.started().migration_id());
  const auto reply = ask(request).status_reply();
  ASSERT_EQ(reply.migrations_size(), 1);
  const proto::MigrationStatus& status = reply.migrations(0);
  EXPECT_EQ(status.role(), "source");
  EXPECT_EQ(status.state(), "working");
  EXPECT_EQ(status.phase(), "keeping");
  EXPECT_FALSE(status.finished());
  EXPECT_EQ(status.pid(), 0);  // no process started at that time
  EXPECT_GT(status.began_unix_ms(), 0);
}

TEST_F(RequestsTest, StatusHasBothRolesOnOneHost) {
  const Uuid id = write_source(state_, SourceState::kConfirmed);
  write_destination(state_, DestinationState::kRunning, {}, id);
  const auto reply = status(id).status_reply();
  ASSERT_EQ(reply.migrations_size(), 2);
  EXPECT_EQ(reply.migrations(0).state(), "confirmed");
  EXPECT_EQ(reply.migrations(1).state(), "running");
}

TEST_F(RequestsTest, StatusNamesTheReasonOfAnAbort) {
  const auto reply = status(write_source(state_, SourceState::kUndone)).status_reply();
  ASSERT_EQ(reply.migrations_size(), 1);
  EXPECT_TRUE(reply.migrations(0).finished());
  EXPECT_EQ(reply.migrations(0).code(), "timeout");
  EXPECT_EQ(reply.migrations(0).message(), "too slow");
}

TEST_F(RequestsTest, ListIsOrderedAndHasFinishedOnesOnRequest) {
  const Uuid first = write_source(state_, SourceState::kCommitted);
  std::this_thread::sleep_for(
      std::chrono::milliseconds(1));  // within one millisecond there is no order
  const Uuid second = write_destination(state_, DestinationState::kRunning);
  EXPECT_EQ(list(false).migrations_size(), 1);
  const auto all = list(true);
  ASSERT_EQ(all.migrations_size(), 2);
  EXPECT_EQ(all.migrations(0).migration_id(), to_bytes(first));
  EXPECT_EQ(all.migrations(1).migration_id(), to_bytes(second));
}

TEST_F(RequestsTest, ListDoesNotWaitForASync) {
  const Uuid id = write_source(state_, SourceState::kCommitted);
  const UniqueFd journal(
      ::open(journal::path_of(state_, id, journal::Began::SOURCE).c_str(), O_RDWR | O_CLOEXEC));
  struct flock writing {};
  writing.l_type = F_WRLCK;
  ASSERT_EQ(::fcntl(journal.get(), F_OFD_SETLK, &writing), 0);
  EXPECT_EQ(list(true).migrations_size(), 1);
}

TEST_F(RequestsTest, ExcessJournalsOfAUserArePruned) {
  constexpr int kShare = 1000;
  write_undone_quickly(state_, {.ordered_by = "another operator"});
  for (int i = 0; i < kShare + 10; ++i) write_undone_quickly(state_);
  EXPECT_EQ(list(true).migrations_size(), kShare + 11);
  {
    Client migrating(agent_, credentials_, "operator");
    const std::string pid = migrating.ask("pid").event().text();
    migrating.release();
    ASSERT_TRUE(agent_.wait_for_log("worker " + pid + " ended with status 0"));
  }
  EXPECT_EQ(list(true).migrations_size(), kShare + 1);
}

TEST_F(RequestsTest, OutcomeComesFromTheJournal) {
  const std::pair<SourceState, OutcomeReply::Outcome> states[] = {
      {SourceState::kWorking, OutcomeReply::UNDECIDED},
      {SourceState::kAwaiting, OutcomeReply::UNDECIDED},
      {SourceState::kCommitted, OutcomeReply::COMMITTED},
      {SourceState::kConfirmed, OutcomeReply::COMMITTED},
      {SourceState::kAborted, OutcomeReply::ABORTED},
      {SourceState::kUndone, OutcomeReply::ABORTED}};
  for (const auto& [state, expected] : states) {
    const Uuid id = write_source(state_, state, with_agent_);
    EXPECT_EQ(outcome(id).outcome_reply().outcome(), expected) << to_string(state);
  }
  EXPECT_EQ(outcome(Uuid::random()).outcome_reply().outcome(), OutcomeReply::UNKNOWN);
}

TEST_F(RequestsTest, VoteComesFromTheDestinationsJournal) {
  const std::pair<DestinationState, OutcomeReply::Outcome> states[] = {
      {DestinationState::kBuilding, OutcomeReply::UNDECIDED},
      {DestinationState::kRestored, OutcomeReply::VOTED},
      {DestinationState::kCommitted, OutcomeReply::VOTED},
      {DestinationState::kRunning, OutcomeReply::VOTED},
      {DestinationState::kAborted, OutcomeReply::ABORTED},
      {DestinationState::kGone, OutcomeReply::ABORTED}};
  for (const auto& [state, expected] : states) {
    const Uuid id = write_destination(state_, state, with_agent_);
    EXPECT_EQ(outcome(id, true).outcome_reply().outcome(), expected) << to_string(state);
    EXPECT_EQ(outcome(id).outcome_reply().outcome(), OutcomeReply::UNKNOWN);
  }
  const Uuid sources = write_source(state_, SourceState::kAwaiting, with_agent_);
  EXPECT_EQ(outcome(sources, true).outcome_reply().outcome(), OutcomeReply::UNKNOWN);
  const Uuid anothers = write_destination(state_, DestinationState::kRestored);
  EXPECT_EQ(outcome(anothers, true).failure().code(), "permission-denied");
}

TEST_F(RequestsTest, OutcomeIsGivenOnlyToTheMigrationsPeer) {
  EXPECT_TRUE(
      outcome(write_source(state_, SourceState::kCommitted, with_agent_)).has_outcome_reply());
  EXPECT_EQ(outcome(write_source(state_, SourceState::kCommitted)).failure().code(),
            "permission-denied");
}

TEST_F(RequestsTest, RepeatedCommitIsConfirmedAgain) {
  const Uuid id = write_destination(state_, DestinationState::kRunning, with_agent_);
  EXPECT_EQ(commit(id).commit_reply().pid(), kRestoredPid);
  EXPECT_EQ(commit(id).commit_reply().pid(), kRestoredPid);
}

TEST_F(RequestsTest, CommitOfAnAbortedMigrationIsRefused) {
  const Uuid id = write_destination(state_, DestinationState::kGone, with_agent_);
  const auto failure = commit(id).failure();
  EXPECT_EQ(failure.code(), "refused");
  EXPECT_THAT(failure.message(), HasSubstr("no room"));
}

TEST_F(RequestsTest, CommitBeforeTheVoteIsAProtocolError) {
  const Uuid id = write_destination(state_, DestinationState::kBuilding, with_agent_);
  EXPECT_EQ(commit(id).failure().code(), "protocol");
}

TEST_F(RequestsTest, CommitIsAcceptedOnlyFromTheMigrationsPeer) {
  const Uuid id = write_destination(state_, DestinationState::kRestored);
  EXPECT_EQ(commit(id).failure().code(), "permission-denied");
}

TEST_F(RequestsTest, AgentsAndOperatorsHaveSeparateRequests) {
  proto::Envelope list;
  list.mutable_list_request();
  EXPECT_EQ(ask(list, "agent").failure().code(), "permission-denied");
  EXPECT_EQ(outcome(Uuid::random(), false, "operator").failure().code(), "permission-denied");
}

/// Journals that existed before the agent started: recovery owns them.
class RecoveredTest : public testing::Test {
 protected:
  control::test::Credentials credentials_;
  AgentHome home_;
};

TEST_F(RecoveredTest, CommitIsConfirmedOnceTheProcessRuns) {
  const Uuid id =
      write_destination(home_.state_dir(), DestinationState::kRestored, {.peer_name = "agent"});
  AgentProcess agent(credentials_, {}, home_);
  Client source(agent, credentials_, "agent");
  proto::Envelope request;
  request.mutable_commit_request()->set_migration_id(to_bytes(id));
  EXPECT_EQ(source.call(request).commit_reply().pid(), kRestoredPid);
  EXPECT_FALSE(journal::last(
      journal::read(journal::path_of(home_.state_dir(), id, journal::Began::DESTINATION))->records,
      journal::Record::kResolved));
}

TEST_F(RecoveredTest, UnhandledCommitAsksForARetry) {
  AgentProcess agent(credentials_, "peer_silence_ms = 500", home_);
  const Uuid id =
      write_destination(home_.state_dir(), DestinationState::kRestored, {.peer_name = "agent"});
  Client source(agent, credentials_, "agent");
  proto::Envelope request;
  request.mutable_commit_request()->set_migration_id(to_bytes(id));
  EXPECT_EQ(source.call(request).failure().code(), "timeout");
}

}  // namespace
}  // namespace gcr::daemon::test
