// Real agents that recover from journals, and peers that are not the expected ones, or whose copy
// is lost. The processes of the journals are children of the test that only wait.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <asio/co_spawn.hpp>
#include <atomic>
#include <filesystem>
#include <optional>
#include <thread>

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

/// A stopped process, killed and reaped at the end.
class Waiting {
 public:
  Waiting() : pid_(::fork()) {
    if (pid_ == 0) {
      for (;;) ::raise(SIGSTOP);
    }
    ::waitpid(pid_, nullptr, WUNTRACED);
    id_.set_pid(pid_);
    id_.set_start_time(procfs::read_stat(pid_).value().start_time);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() { end(); }

  void end() {
    if (std::exchange(ended_, true)) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  const journal::ProcessId& id() const { return id_; }
  /// Only the test has ended it.
  bool lives() const {
    siginfo_t end{};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &end, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           end.si_pid == 0;
  }

 private:
  pid_t pid_;
  bool ended_ = false;
  journal::ProcessId id_;
};

/// An agent that gives the same reply to every request, each on its own connection; requests for
/// its vote may get another.
class FakeAgent {
 public:
  FakeAgent(control::test::Credentials& credentials, const std::string& name,
            proto::Envelope answer, std::optional<proto::Envelope> vote = {})
      : tls_(credentials.context({.role = "agent", .common_name = name})),
        answer_(std::move(answer)),
        vote_(std::move(vote)) {
    asio::co_spawn(loopback_.io(), serve(), [](const std::exception_ptr&) {});
    thread_ = std::thread([this] { loopback_.io().run(); });
  }
  FakeAgent(const FakeAgent&) = delete;
  FakeAgent& operator=(const FakeAgent&) = delete;
  ~FakeAgent() {
    loopback_.io().stop();
    thread_.join();
  }
  std::string address() const { return loopback_.endpoint().to_string(); }

 private:
  asio::awaitable<void> serve() {
    for (;;) {
      auto channel = co_await loopback_.accept(tls_);
      if (!channel) continue;
      const auto request = co_await (*channel)->receive(control::test::kPatience);
      if (!request) continue;
      const bool of_vote = vote_ && request->outcome_request().of_vote();
      const Status sent = co_await (*channel)->send(of_vote ? *vote_ : answer_);
      if (sent) co_await (*channel)->finish(control::test::kPatience);
    }
  }

  control::test::Loopback loopback_;
  std::shared_ptr<asio::ssl::context> tls_;
  proto::Envelope answer_;
  std::optional<proto::Envelope> vote_;
  std::thread thread_;
};

proto::Envelope it_runs() {
  proto::Envelope answer;
  answer.mutable_commit_reply()->set_pid(4242);
  return answer;
}

proto::Envelope it_is_lost() {
  proto::Envelope answer;
  answer.mutable_copy_lost()->set_reason("it was killed");
  return answer;
}

proto::Envelope vote(proto::OutcomeReply::Outcome outcome) {
  proto::Envelope answer;
  answer.mutable_outcome_reply()->set_outcome(outcome);
  return answer;
}

class ExactlyOne : public testing::Test {
 protected:
  /// Its process was lost with its host.
  Uuid lost_source(const FakeAgent& peer, SourceState state) {
    return write_source(
        home_.state_dir(), state,
        {.peer = peer.address(), .peer_name = "peer", .boot_id = "of an earlier boot"});
  }
  Uuid committed_source(const FakeAgent& peer, const std::string& peer_name) {
    return write_source(home_.state_dir(), SourceState::kCommitted,
                        {.peer = peer.address(),
                         .peer_name = peer_name,
                         .pid = process_.id().pid(),
                         .start_time = process_.id().start_time()});
  }
  /// A destination that has voted for the process, and whose source does not answer.
  Uuid voted_destination(DestinationState state = DestinationState::kRestored) {
    const Uuid id =
        write_destination(home_.state_dir(), DestinationState::kBuilding, {.peer_name = "agent"});
    auto log = commit::DestinationLog::open(
        journal::path_of(home_.state_dir(), id, Began::DESTINATION), journal::Lock::kTry);
    journal::Record restored;
    *restored.mutable_restored()->add_members() = process_.id();
    *restored.mutable_restored()->mutable_init() = process_.id();
    must(log->advance(commit::DestinationEvent::kRestored, restored));
    if (state == DestinationState::kRestored) return id;
    must(log->advance(commit::DestinationEvent::kToldCommit, committed()));
    return id;
  }
  proto::Envelope ask(const AgentProcess& agent, const proto::Envelope& request) {
    Client client(agent, credentials_, "agent");
    return client.call(request);
  }
  proto::Envelope commit(const AgentProcess& agent, const Uuid& id) {
    proto::Envelope request;
    request.mutable_commit_request()->set_migration_id(to_bytes(id));
    return ask(agent, request);
  }
  std::string last_state(const Uuid& id, journal::Role role) {
    const journal::Entry entry{id, role, journal::path_of(home_.state_dir(), id, role)};
    const auto contents = journal::read(entry.path);
    return std::string(to_string(*commit::replay_source(contents->records)));
  }

  control::test::Credentials credentials_;
  AgentHome home_;
  Waiting process_;
};

TEST_F(ExactlyOne, SourceIgnoresCommitRepliesOfOtherAgents) {
  const FakeAgent stranger(credentials_, "stranger", it_runs());
  committed_source(stranger, "peer");
  AgentProcess agent(credentials_, {}, home_);
  EXPECT_TRUE(agent.wait_for_log("is \"stranger\", not \"peer\""));
  EXPECT_TRUE(agent.wait_for_log("is \"stranger\", not \"peer\""));
  EXPECT_TRUE(process_.lives());
}

TEST_F(ExactlyOne, SourceKeepsItsCopyIfThePeersNameIsUnknown) {
  const FakeAgent stranger(credentials_, "stranger", it_runs());
  committed_source(stranger, "");
  AgentProcess agent(credentials_, {}, home_);
  EXPECT_TRUE(agent.wait_for_log("has not confirmed the commit"));
  EXPECT_TRUE(agent.wait_for_log("has not confirmed the commit"));
  EXPECT_TRUE(process_.lives());
}

TEST_F(ExactlyOne, SourceEndsItsCopyOnceTheRightAgentConfirms) {
  const FakeAgent peer(credentials_, "peer", it_runs());
  const Uuid id = committed_source(peer, "peer");
  AgentProcess agent(credentials_, {}, home_);
  ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
  EXPECT_EQ(last_state(id, Began::SOURCE), "confirmed");
  EXPECT_FALSE(process_.lives());
}

TEST_F(ExactlyOne, SourceResumesIfTheDestinationLostItsCopy) {
  const FakeAgent peer(credentials_, "peer", it_is_lost());
  const Uuid id = committed_source(peer, "peer");
  AgentProcess agent(credentials_, {}, home_);
  ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
  EXPECT_EQ(last_state(id, Began::SOURCE), "undone");
  EXPECT_TRUE(process_.lives());
}

TEST_F(ExactlyOne, VotedCopyRunsIfTheSourceLostItsProcess) {
  const FakeAgent peer(credentials_, "peer", it_runs(), vote(proto::OutcomeReply::VOTED));
  const Uuid id = lost_source(peer, SourceState::kAwaiting);
  AgentProcess agent(credentials_, {}, home_);
  ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
  EXPECT_EQ(last_state(id, Began::SOURCE), "confirmed");
}

TEST_F(ExactlyOne, WithoutAVoteAProcessLostAtTheSourceIsLost) {
  for (const auto answer : {proto::OutcomeReply::ABORTED, proto::OutcomeReply::UNKNOWN}) {
    const FakeAgent peer(credentials_, "peer", it_runs(), vote(answer));
    const Uuid id = lost_source(peer, SourceState::kAwaiting);
    AgentProcess agent(credentials_, {}, home_);
    ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
    EXPECT_EQ(last_state(id, Began::SOURCE), "undone");
  }
}

TEST_F(ExactlyOne, NoVoteIsRequestedBeforeTheRestore) {
  const FakeAgent peer(credentials_, "peer", it_runs(), vote(proto::OutcomeReply::VOTED));
  const Uuid id = lost_source(peer, SourceState::kWorking);
  AgentProcess agent(credentials_, {}, home_);
  ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
  EXPECT_EQ(last_state(id, Began::SOURCE), "undone");
}

TEST_F(ExactlyOne, VoteOfAnUnknownAgentIsIgnored) {
  const FakeAgent stranger(credentials_, "stranger", it_runs(), vote(proto::OutcomeReply::VOTED));
  const Uuid id = lost_source(stranger, SourceState::kAwaiting);
  AgentProcess agent(credentials_, {}, home_);
  EXPECT_TRUE(agent.wait_for_log("is \"stranger\", not \"peer\""));
  EXPECT_TRUE(agent.wait_for_log("is \"stranger\", not \"peer\""));
  EXPECT_EQ(last_state(id, Began::SOURCE), "awaiting");
}

TEST_F(ExactlyOne, CancellationEndsTheWaitForTheVote) {
  const FakeAgent peer(credentials_, "peer", it_runs(), vote(proto::OutcomeReply::UNDECIDED));
  const Uuid id = lost_source(peer, SourceState::kAwaiting);
  AgentProcess agent(credentials_, {}, home_);
  ASSERT_TRUE(agent.wait_for_log("recovers " + id.to_string()));
  Client human(agent, credentials_, "operator");
  proto::Envelope request;
  request.mutable_cancel_request()->set_migration_id(to_bytes(id));
  EXPECT_TRUE(human.call(request).has_cancel_reply());
  ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
  EXPECT_EQ(last_state(id, Began::SOURCE), "undone");
}

TEST_F(ExactlyOne, LostCopyIsNotReportedAsRunning) {
  const Uuid id = voted_destination();
  process_.end();
  AgentProcess agent(credentials_, "peer_silence_ms = 60000", home_);
  for (int times = 0; times < 2; ++times) {
    EXPECT_THAT(commit(agent, id).copy_lost().reason(), HasSubstr("ended before it was released"));
  }
}

TEST_F(ExactlyOne, CopyLostInARebootBeforeTheCommitNeverRan) {
  const Uuid id = voted_destination();
  const auto path = journal::path_of(home_.state_dir(), id, Began::DESTINATION);
  std::filesystem::remove(path);
  Began began = began_of({});
  began.set_peer_name("agent");
  began.set_boot_id("of an earlier boot");
  {
    auto log = commit::DestinationLog::create(home_.state_dir(), id, began);
    journal::Record restored;
    *restored.mutable_restored()->add_members() = process_.id();
    *restored.mutable_restored()->mutable_init() = process_.id();
    must(log->advance(commit::DestinationEvent::kRestored, restored));
  }
  AgentProcess agent(credentials_, "peer_silence_ms = 60000", home_);
  EXPECT_THAT(commit(agent, id).copy_lost().reason(), HasSubstr("restarted"));
}

TEST_F(ExactlyOne, CopyThatMayHaveRunIsNotReportedLost) {
  const Uuid id = voted_destination(DestinationState::kCommitted);
  process_.end();
  AgentProcess agent(credentials_, "peer_silence_ms = 60000", home_);
  EXPECT_TRUE(commit(agent, id).has_commit_reply());
}

TEST_F(ExactlyOne, OutcomeIsGivenOnlyToTheAgentInTheJournal) {
  const auto outcome = [&](const AgentProcess& agent, const Uuid& id) {
    proto::Envelope request;
    request.mutable_outcome_request()->set_migration_id(to_bytes(id));
    return ask(agent, request);
  };
  AgentProcess agent(credentials_, {}, home_);
  const auto state_dir = home_.state_dir();
  const Uuid without_peer = write_source(state_dir, SourceState::kUndone, {.peer_name = ""});
  const Uuid anothers = write_source(state_dir, SourceState::kUndone, {.peer_name = "peer"});
  const Uuid ours = write_source(state_dir, SourceState::kUndone, {.peer_name = "agent"});
  EXPECT_EQ(outcome(agent, without_peer).failure().code(), "permission-denied");
  EXPECT_EQ(outcome(agent, anothers).failure().code(), "permission-denied");
  EXPECT_EQ(outcome(agent, ours).outcome_reply().outcome(), proto::OutcomeReply::ABORTED);
}

TEST_F(ExactlyOne, UnknownAgentCannotMisleadTheOperator) {
  proto::Envelope refusal;
  *refusal.mutable_failure() = control::to_failure(Error(Code::kNotFound, "never heard of it"));
  const FakeAgent stranger(credentials_, "stranger", refusal);
  const Uuid id = committed_source(stranger, "");
  AgentProcess agent(credentials_, {}, home_);
  Client human(agent, credentials_, "operator");
  proto::Envelope request;
  request.mutable_resolve_request()->set_migration_id(to_bytes(id));
  request.mutable_resolve_request()->set_decision(proto::ResolveRequest::DISCARD_HERE);
  request.mutable_resolve_request()->set_peer_is_gone(true);
  EXPECT_EQ(human.call(request).failure().code(), "refused");
  EXPECT_TRUE(process_.lives());
}

/// Journals that a disk has damaged.
class DamagedJournal : public ExactlyOne {
 protected:
  void damage(const Uuid& id, journal::Role role, std::size_t slot) {
    gcr::test::damage_byte(path(id, role), slot * journal::kSlotBytes + 100);
  }
  std::filesystem::path path(const Uuid& id, journal::Role role) {
    return journal::path_of(home_.state_dir(), id, role);
  }
  proto::Envelope resolve(const AgentProcess& agent, const Uuid& id,
                          proto::ResolveRequest::Decision decision, pid_t pid = 0) {
    Client human(agent, credentials_, "operator");
    proto::Envelope request;
    request.mutable_resolve_request()->set_migration_id(to_bytes(id));
    request.mutable_resolve_request()->set_decision(decision);
    request.mutable_resolve_request()->set_peer_is_gone(true);
    request.mutable_resolve_request()->set_pid(pid);
    return human.call(request);
  }
  Uuid source() {
    return write_source(home_.state_dir(), SourceState::kAwaiting,
                        {.pid = process_.id().pid(), .start_time = process_.id().start_time()});
  }
};

TEST_F(DamagedJournal, OperatorCanEndTheCopyAtTheSource) {
  const Uuid id = source();
  damage(id, Began::SOURCE, 2);
  AgentProcess agent(credentials_, {}, home_);
  EXPECT_TRUE(resolve(agent, id, proto::ResolveRequest::DISCARD_HERE).has_resolve_reply());
  ASSERT_TRUE(agent.wait_for_log("recovers " + id.to_string()));
  ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
  EXPECT_EQ(last_state(id, Began::SOURCE), "confirmed");
  EXPECT_FALSE(process_.lives());
  EXPECT_TRUE(std::filesystem::exists(path(id, Began::SOURCE).string() + ".damaged"));
}

TEST_F(DamagedJournal, OperatorCanResumeTheProcess) {
  const Uuid id = source();
  damage(id, Began::SOURCE, 2);
  AgentProcess agent(credentials_, {}, home_);
  EXPECT_TRUE(resolve(agent, id, proto::ResolveRequest::RUN_HERE).has_resolve_reply());
  ASSERT_TRUE(agent.wait_for_log("recovers " + id.to_string()));
  ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
  EXPECT_EQ(last_state(id, Began::SOURCE), "undone");
  EXPECT_TRUE(process_.lives());
}

TEST_F(DamagedJournal, OperatorCanEndTheCopyAtTheDestination) {
  const Uuid id = voted_destination(DestinationState::kCommitted);
  damage(id, Began::DESTINATION, 3);
  AgentProcess agent(credentials_, {}, home_);
  EXPECT_TRUE(resolve(agent, id, proto::ResolveRequest::DISCARD_HERE).has_resolve_reply());
  ASSERT_TRUE(agent.wait_for_log("recovers " + id.to_string()));
  ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
  EXPECT_FALSE(process_.lives());
}

TEST_F(DamagedJournal, WithoutPidRequiresOperatorToNameIt) {
  const Uuid id = source();
  damage(id, Began::SOURCE, 0);
  damage(id, Began::SOURCE, 1);
  AgentProcess agent(credentials_, {}, home_);
  const auto failure = resolve(agent, id, proto::ResolveRequest::DISCARD_HERE).failure();
  EXPECT_EQ(failure.code(), "invalid-argument");
  EXPECT_THAT(failure.message(), HasSubstr("--pid"));
  EXPECT_TRUE(process_.lives());
  const pid_t pid = process_.id().pid();
  EXPECT_TRUE(resolve(agent, id, proto::ResolveRequest::DISCARD_HERE, pid).has_resolve_reply());
  ASSERT_TRUE(agent.wait_for_log("recovers " + id.to_string()));
  ASSERT_TRUE(agent.wait_for_log("ended with status 0"));
  EXPECT_FALSE(process_.lives());
}

TEST_F(ExactlyOne, CertificateWithoutANameIsRefused) {
  const AgentProcess agent(credentials_, {}, home_);
  const auto nameless = credentials_.context({.role = "agent", .common_name = ""});
  const auto ask_for_outcome = [&] {
    Client client(agent, nameless);
    proto::Envelope request;
    request.mutable_outcome_request()->set_migration_id(to_bytes(Uuid::random()));
    client.call(request);
  };
  EXPECT_THROW(ask_for_outcome(), std::runtime_error);
}

}  // namespace
}  // namespace gcr::daemon::test
