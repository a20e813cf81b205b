// Decisions of an operator: accepted only if no protocol can decide, and only once the other agent
// is gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/daemon/agent_process.h"
#include "tests/daemon/journals.h"

namespace gcr::daemon::test {
namespace {

using commit::DestinationState;
using commit::SourceState;
using proto::ResolveRequest;
using testing::HasSubstr;

class ResolveTest : public testing::Test {
 protected:
  /// An agent that finds the journals that were written before.
  void start() { agent_.emplace(credentials_, "peer_silence_ms = 20000", home_); }

  proto::Envelope resolve(const Uuid& id, ResolveRequest::Decision decision,
                          bool peer_is_gone = true) {
    if (!agent_) start();
    Client client(*agent_, credentials_, "operator");
    proto::Envelope request;
    request.mutable_resolve_request()->set_migration_id(to_bytes(id));
    request.mutable_resolve_request()->set_decision(decision);
    request.mutable_resolve_request()->set_peer_is_gone(peer_is_gone);
    return client.call(request);
  }
  bool was_resolved(const Uuid& id, journal::Role role) {
    const auto contents = journal::read(journal::path_of(state_, id, role));
    return journal::last(contents->records, journal::Record::kResolved) != nullptr;
  }

  control::test::Credentials credentials_;
  AgentHome home_;
  std::filesystem::path state_ = home_.state_dir();
  std::optional<AgentProcess> agent_;
};

TEST_F(ResolveTest, DestinationRunsIfItsSourceIsGone) {
  const Uuid id = write_destination(state_, DestinationState::kRestored);
  const auto reply = resolve(id, ResolveRequest::RUN_HERE).resolve_reply();
  EXPECT_EQ(reply.text(), "runs here");
  EXPECT_EQ(reply.status().state(), "running");
  EXPECT_TRUE(was_resolved(id, journal::Began::DESTINATION));
}

TEST_F(ResolveTest, DestinationIsDiscarded) {
  const Uuid id = write_destination(state_, DestinationState::kRestored);
  const auto reply = resolve(id, ResolveRequest::DISCARD_HERE).resolve_reply();
  EXPECT_EQ(reply.text(), "discarded here");
  EXPECT_EQ(reply.status().state(), "gone");
}

TEST_F(ResolveTest, SourceResumesIfItsDestinationIsGone) {
  const Uuid id = write_source(state_, SourceState::kCommitted);
  const auto reply = resolve(id, ResolveRequest::RUN_HERE).resolve_reply();
  EXPECT_EQ(reply.text(), "runs here");
  EXPECT_EQ(reply.status().state(), "undone");
}

TEST_F(ResolveTest, SourceIsDiscarded) {
  const Uuid id = write_source(state_, SourceState::kCommitted);
  const auto reply = resolve(id, ResolveRequest::DISCARD_HERE).resolve_reply();
  EXPECT_EQ(reply.text(), "discarded here");
  EXPECT_EQ(reply.status().state(), "confirmed");
}

TEST_F(ResolveTest, OperatorMustConfirmThatThePeerIsGone) {
  const Uuid id = write_destination(state_, DestinationState::kRestored);
  const auto failure = resolve(id, ResolveRequest::RUN_HERE, false).failure();
  EXPECT_EQ(failure.code(), "invalid-argument");
  EXPECT_THAT(failure.message(), HasSubstr("will never run again"));
  EXPECT_FALSE(was_resolved(id, journal::Began::DESTINATION));
}

TEST_F(ResolveTest, DecisionIsRequired) {
  const Uuid id = write_destination(state_, DestinationState::kRestored);
  EXPECT_EQ(resolve(id, ResolveRequest::DECISION_INVALID).failure().code(), "invalid-argument");
}

TEST_F(ResolveTest, DecisionIsRefusedIfTheProtocolCanFinish) {
  start();
  const Uuid working = write_source(state_, SourceState::kWorking);
  const auto failure = resolve(working, ResolveRequest::DISCARD_HERE).failure();
  EXPECT_EQ(failure.code(), "refused");
  EXPECT_THAT(failure.message(), HasSubstr("The source here is working"));
  const Uuid running = write_destination(state_, DestinationState::kRunning);
  EXPECT_EQ(resolve(running, ResolveRequest::DISCARD_HERE).failure().code(), "refused");
  EXPECT_EQ(resolve(Uuid::random(), ResolveRequest::RUN_HERE).failure().code(), "not-found");
}

/// The other agent is a second one.
class ResolveWithPeerTest : public ResolveTest {
 protected:
  AgentProcess peer_{credentials_};
  std::filesystem::path peer_state_ = peer_.state_dir();
  Beginning beginning_{.peer = peer_.endpoint().to_string(), .peer_name = "test"};
};

TEST_F(ResolveWithPeerTest, ReachableSourceDecides) {
  const Uuid id = write_destination(state_, DestinationState::kRestored, beginning_);
  write_source(peer_state_, SourceState::kAwaiting, {.peer_name = "test"}, id);
  const auto failure = resolve(id, ResolveRequest::RUN_HERE).failure();
  EXPECT_EQ(failure.code(), "refused");
  EXPECT_THAT(failure.message(), HasSubstr(peer_.endpoint().to_string() + " replies"));
  EXPECT_FALSE(was_resolved(id, journal::Began::DESTINATION));
}

TEST_F(ResolveWithPeerTest, OperatorCannotDiscardARunningJob) {
  const Uuid id = write_source(state_, SourceState::kCommitted, beginning_);
  write_destination(peer_state_, DestinationState::kRunning, {.peer_name = "test"}, id);
  EXPECT_EQ(resolve(id, ResolveRequest::RUN_HERE).failure().code(), "refused");
  EXPECT_FALSE(was_resolved(id, journal::Began::SOURCE));
}

TEST_F(ResolveWithPeerTest, AgentWithoutTheMigrationCannotDecide) {
  const Uuid in_doubt = write_destination(state_, DestinationState::kRestored, beginning_);
  const Uuid committed = write_source(state_, SourceState::kCommitted, beginning_);
  EXPECT_EQ(resolve(in_doubt, ResolveRequest::RUN_HERE).resolve_reply().text(), "runs here");
  EXPECT_EQ(resolve(committed, ResolveRequest::RUN_HERE).resolve_reply().text(), "runs here");
}

TEST_F(ResolveWithPeerTest, DestinationThatLostItsCopyCannotDecide) {
  const Uuid id = write_source(state_, SourceState::kCommitted, beginning_);
  write_destination(peer_state_, DestinationState::kGone, {.peer_name = "test"}, id);
  EXPECT_EQ(resolve(id, ResolveRequest::RUN_HERE).resolve_reply().status().state(), "undone");
}

TEST_F(ResolveWithPeerTest, AnotherAgentAtTheAddressProvesNothing) {
  beginning_.peer_name = "another";
  const Uuid id = write_source(state_, SourceState::kCommitted, beginning_);
  EXPECT_EQ(resolve(id, ResolveRequest::RUN_HERE).failure().code(), "refused");
}

}  // namespace
}  // namespace gcr::daemon::test
