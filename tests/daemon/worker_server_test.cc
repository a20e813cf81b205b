// A worker's control socket, both ends in this process.
#include "migrate-agent/worker/runtime/worker_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <asio/co_spawn.hpp>
#include <fstream>

#include "migrate-agent/worker/runtime/local_socket.h"
#include "tests/daemon/agent_process.h"
#include "tests/daemon/journals.h"

namespace gcr::daemon::test {
namespace {

using control::test::kPatience;
using journal::Began;
using ReplyResult = Result<registry::WorkerReply>;

class WorkerServerTest : public testing::Test {
 protected:
  WorkerServerTest() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
      throw std::runtime_error("no socket pair");
    }
    daemon_end_.reset(ends[0]);
    daemon_.emplace(io_, UniqueFd(ends[1]));
    config_.state_dir = folder_.path() + "/state";
    config_.runtime_dir = folder_.path() + "/run";
    serve();
  }
  ~WorkerServerTest() override {
    server_.reset();
    daemon_.reset();
    io_.restart();
    io_.run();
  }

  void serve() { server_.emplace(io_, config_, cancellation_, *daemon_); }

  /// Starts a request; its reply is in the result once the io_context has run.
  std::shared_ptr<std::optional<ReplyResult>> ask(const registry::ToWorker& question,
                                                  std::chrono::milliseconds patience = kPatience) {
    auto result = std::make_shared<std::optional<ReplyResult>>();
    asio::co_spawn(
        io_, ask_worker(address(), question, patience),
        [result](const std::exception_ptr&, ReplyResult reply) { *result = std::move(reply); });
    return result;
  }
  ReplyResult answer(const registry::ToWorker& question,
                     std::chrono::milliseconds patience = kPatience) {
    return wait(ask(question, patience));
  }
  ReplyResult wait(const std::shared_ptr<std::optional<ReplyResult>>& result) {
    io_.restart();
    while (!*result) io_.run_one();
    return **result;
  }
  /// The next decision that the role gets.
  worker::Decision decision() {
    std::optional<worker::Decision> next;
    asio::co_spawn(io_, server_->next_decision(),
                   [&](const std::exception_ptr&, worker::Decision got) { next = std::move(got); });
    io_.restart();
    while (!next) io_.run_one();
    return std::move(*next);
  }
  worker::WorkerAddress address() const { return {config_.runtime_dir, id_, Began::SOURCE}; }

  TemporaryFolder folder_;
  asio::io_context io_{1};
  UniqueFd daemon_end_;
  std::optional<worker::DaemonClient> daemon_;
  worker::Config config_;
  worker::Cancellation cancellation_;
  Uuid id_ = Uuid::random();
  std::optional<worker::WorkerServer> server_;
};

registry::ToWorker status_question() {
  registry::ToWorker question;
  question.mutable_ask_status();
  return question;
}

registry::ToWorker decide(registry::Decide::Decision decision) {
  registry::ToWorker question;
  question.mutable_decide()->set_decision(decision);
  question.mutable_decide()->set_by("alice");
  return question;
}

TEST_F(WorkerServerTest, RefusesConnectionsBeforeItOpens) {
  const auto reply = answer(status_question());
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code(), Code::kNotFound);
}

TEST_F(WorkerServerTest, ReportsThePhaseAndANeededOperator) {
  ASSERT_TRUE(server_->open(id_, Began::SOURCE));
  daemon_->report_phase("copying");
  server_->set_operator_needed(true);
  const auto reply = answer(status_question());
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status().phase(), "copying");
  EXPECT_TRUE(reply->status().operator_needed());
}

TEST_F(WorkerServerTest, CancelIsRequested) {
  ASSERT_TRUE(server_->open(id_, Began::SOURCE));
  registry::ToWorker question;
  question.mutable_cancel()->set_why("alice said so");
  ASSERT_TRUE(answer(question));
  EXPECT_EQ(cancellation_.check().error().message(), "alice said so");
}

TEST_F(WorkerServerTest, DecisionIsAnsweredAfterItWasApplied) {
  ASSERT_TRUE(server_->open(id_, Began::SOURCE));
  const auto reply = ask(decide(registry::Decide::RUN_HERE));
  worker::Decision brought = decision();
  EXPECT_TRUE(brought.run_here);
  EXPECT_FALSE(brought.by_source);
  EXPECT_EQ(brought.by, "alice");
  EXPECT_FALSE(*reply);
  brought.answer({});
  EXPECT_TRUE(wait(reply));
}

TEST_F(WorkerServerTest, DecisionsAreDistinguished) {
  ASSERT_TRUE(server_->open(id_, Began::SOURCE));
  const auto first = ask(decide(registry::Decide::DISCARD_HERE));
  EXPECT_FALSE(decision().run_here);
  const auto second = ask(decide(registry::Decide::COMMITTED));
  const worker::Decision committed = decision();
  EXPECT_TRUE(committed.run_here);
  EXPECT_TRUE(committed.by_source);
}

TEST_F(WorkerServerTest, RefusedDecisionHasAReason) {
  ASSERT_TRUE(server_->open(id_, Began::SOURCE));
  const auto reply = ask(decide(registry::Decide::RUN_HERE));
  decision().answer(Error(Code::kRefused, "too late"));
  const auto refused = wait(reply);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kRefused);
  EXPECT_EQ(refused.error().message(), "too late");
}

TEST_F(WorkerServerTest, DroppedDecisionIsAnswered) {
  ASSERT_TRUE(server_->open(id_, Began::SOURCE));
  const auto reply = ask(decide(registry::Decide::RUN_HERE));
  { const worker::Decision dropped = decision(); }
  const auto refused = wait(reply);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnavailable);
}

TEST_F(WorkerServerTest, DecisionOfADisconnectedOperatorIsDropped) {
  ASSERT_TRUE(server_->open(id_, Began::SOURCE));
  const auto late = answer(decide(registry::Decide::DISCARD_HERE), std::chrono::milliseconds(1));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), Code::kTimeout);
  // by now the server has noticed that the other one disconnected
  ASSERT_TRUE(answer(status_question()));
  const auto reply = ask(decide(registry::Decide::RUN_HERE));
  EXPECT_TRUE(decision().run_here);
}

TEST_F(WorkerServerTest, EndOfTheWorkerAnswersAllWaiters) {
  ASSERT_TRUE(server_->open(id_, Began::SOURCE));
  const auto reply = ask(decide(registry::Decide::RUN_HERE));
  const worker::Decision taken = decision();
  server_.reset();
  const auto gone = wait(reply);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code(), Code::kUnavailable);
  EXPECT_FALSE(std::filesystem::exists(address().path()));
}

TEST_F(WorkerServerTest, SocketOfADeadWorkerIsReplaced) {
  std::filesystem::create_directories(address().path().parent_path());
  {
    UniqueFd dead(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const auto where = worker::LocalAddress::create(address().path());
    ASSERT_TRUE(where);
    ASSERT_EQ(::bind(dead.get(), where->get(), where->length()), 0);
  }
  const auto unanswered = answer(status_question());
  ASSERT_FALSE(unanswered);
  EXPECT_EQ(unanswered.error().code(), Code::kNotFound);
  ASSERT_TRUE(server_->open(id_, Began::SOURCE));
  EXPECT_TRUE(answer(status_question()));
}

TEST_F(WorkerServerTest, SocketOfTheNextOwnerStays) {
  ASSERT_TRUE(server_->open(id_, Began::SOURCE));
  auto successor = commit::SourceLog::create(config_.state_dir, id_, began_of({}));
  ASSERT_TRUE(successor);
  server_.reset();
  EXPECT_TRUE(std::filesystem::exists(address().path()));
}

TEST_F(WorkerServerTest, SocketIsPrivate) {
  ASSERT_TRUE(server_->open(id_, Began::SOURCE));
  struct stat info {};
  ASSERT_EQ(::stat(address().path().parent_path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
}

TEST_F(WorkerServerTest, LongDirectoryNamesAreAccepted) {
  config_.runtime_dir = folder_.path() + "/" + std::string(200, 'x');
  serve();
  ASSERT_TRUE(server_->open(id_, Began::SOURCE));
  EXPECT_TRUE(answer(status_question()));
}

/// A source that records the orders it gets.
struct Source : worker::SourceControl {
  proto::Progress progress() override {
    proto::Progress progress;
    progress.set_round(7);
    return progress;
  }
  Status go_on() override { return Error(Code::kRefused, "it does not pause"); }
  Status adjust(const proto::AdjustRequest& wanted) override {
    adjusted = wanted;
    return {};
  }
  proto::AdjustRequest adjusted;
};

TEST_F(WorkerServerTest, OrdersReachTheSourceAndRefusalsReturn) {
  ASSERT_TRUE(server_->open(id_, Began::SOURCE));
  Source source;
  server_->attach(&source);
  EXPECT_EQ(answer(status_question())->status().progress().round(), 7U);
  registry::ToWorker order;
  order.mutable_adjust()->set_max_bandwidth_bytes(5);
  EXPECT_TRUE(answer(order));
  EXPECT_EQ(source.adjusted.max_bandwidth_bytes(), 5U);
  order.mutable_go_on();
  EXPECT_EQ(answer(order).error().message(), "it does not pause");
}

TEST_F(WorkerServerTest, OrdersAreRefusedWithoutARunningCopy) {
  ASSERT_TRUE(server_->open(id_, Began::SOURCE));
  registry::ToWorker order;
  order.mutable_go_on();
  EXPECT_EQ(answer(order).error().code(), Code::kRefused);
  EXPECT_FALSE(answer(status_question())->status().has_progress());
}

TEST_F(WorkerServerTest, MalformedMessageEndsOnlyItsConnection) {
  ASSERT_TRUE(server_->open(id_, Began::SOURCE));
  UniqueFd stranger(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const auto where = worker::LocalAddress::create(address().path());
  ASSERT_TRUE(where);
  ASSERT_EQ(::connect(stranger.get(), where->get(), where->length()), 0);
  ASSERT_EQ(::send(stranger.get(), "\xff\xff", 2, 0), 2);
  EXPECT_TRUE(answer(status_question()));
  char byte = 0;
  EXPECT_EQ(::recv(stranger.get(), &byte, 1, 0), 0);
}

TEST_F(WorkerServerTest, UnknownDecisionIsRefused) {
  ASSERT_TRUE(server_->open(id_, Began::SOURCE));
  EXPECT_EQ(answer(decide(registry::Decide::DECISION_INVALID)).error().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(answer({}).error().code(), Code::kUnavailable);  // an empty packet cannot be sent
}

}  // namespace
}  // namespace gcr::daemon::test
