// The other agent as a target: it refuses, is lost, or is no longer waited for. The io_context runs
// on its own thread, as in a worker.
#include "migrate-agent/migration/target/agent/agent_target.h"

#include <gtest/gtest.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <future>
#include <thread>

#include "migrate-agent/worker/runtime/offload.h"
#include "tests/src/control/peers.h"

namespace gcr::migration {
namespace {

using control::test::kPatience;
using proto::Envelope;

class AgentTargetTest : public testing::Test {
 protected:
  ~AgentTargetTest() override {
    target_.reset();
    if (destination_ != nullptr) close();
    guard_.reset();
    thread_.join();
  }

  /// A destination that answers every request with an empty reply, except those of kind silent_.
  void connect(std::chrono::milliseconds silence = kPatience) {
    target_.emplace(loopback_.io(),
                    control::AgentAddress{loopback_.endpoint(), credentials_.context({}),
                                          std::nullopt, "", silence},
                    Uuid::random(), [this](const Error& error) { lost_.set_value(error); });
    asio::co_spawn(loopback_.io(), serve(), asio::detached);
  }

  asio::awaitable<void> serve() {
    auto channel = co_await loopback_.accept(tls_);
    if (!channel) co_return;
    destination_ = std::move(*channel);
    for (;;) {
      const auto request = co_await destination_->receive(kPatience);
      if (!request) co_return;
      if (request->body_case() == silent_) {
        asked_.set_value();
        continue;
      }
      const auto& fields = *Envelope::descriptor();
      Envelope reply;
      reply.GetReflection()->MutableMessage(&reply,
                                            fields.FindFieldByNumber(request->body_case() + 1));
      EXPECT_TRUE(co_await destination_->send(reply));
    }
  }

  void close() {
    const Status closed = worker::on_io(
        loopback_.io(), [](control::ControlChannel& channel) -> asio::awaitable<Status> {
          channel.close();
          co_return Status();
        }(*destination_));
    EXPECT_TRUE(closed);
  }

  Result<proto::PreflightReply> preflight() { return target_->preflight({}); }

  control::test::Credentials credentials_;
  std::shared_ptr<asio::ssl::context> tls_ = credentials_.context({});
  control::test::Loopback loopback_;
  asio::executor_work_guard<asio::io_context::executor_type> guard_ =
      asio::make_work_guard(loopback_.io());
  std::thread thread_{[this] { loopback_.io().run(); }};
  Envelope::BodyCase silent_ = Envelope::BODY_NOT_SET;
  std::promise<void> asked_;
  std::promise<Error> lost_;
  std::unique_ptr<control::ControlChannel> destination_;
  std::optional<AgentTarget> target_;
};

TEST_F(AgentTargetTest, ReturnsTheReplies) {
  connect();
  EXPECT_EQ(target_->common_name(), "");
  ASSERT_TRUE(preflight());
  EXPECT_EQ(target_->common_name(), destination_->peer().common_name);
  EXPECT_TRUE(target_->change({}));
  EXPECT_TRUE(target_->restore({}));
  const auto answer = target_->commit();
  ASSERT_TRUE(answer);
  EXPECT_TRUE(std::holds_alternative<proto::CommitReply>(*answer));
}

TEST_F(AgentTargetTest, AgentLostBetweenRequestsIsReported) {
  connect(std::chrono::milliseconds(500));
  ASSERT_TRUE(preflight());
  close();
  EXPECT_EQ(lost_.get_future().get().code(), Code::kUnavailable);
}

TEST_F(AgentTargetTest, InterruptionEndsAWait) {
  silent_ = Envelope::kRestoreRequest;
  connect();
  ASSERT_TRUE(preflight());
  std::thread other([this] {
    asked_.get_future().wait();
    target_->interrupt(Error(Code::kCancelled, "alice said so"));
  });
  EXPECT_FALSE(target_->restore({}));
  other.join();
}

TEST_F(AgentTargetTest, InterruptionBeforeAWaitIsNotLost) {
  connect();
  ASSERT_TRUE(preflight());
  target_->interrupt(Error(Code::kCancelled, "alice said so"));
  target_->interrupt(Error(Code::kUnavailable, "no agent answers"));
  const auto vote = target_->restore({});
  ASSERT_FALSE(vote);
  EXPECT_EQ(vote.error().message(), "alice said so");
  EXPECT_FALSE(target_->change({}));
}

TEST_F(AgentTargetTest, AbortIsSentAfterAnInterruption) {
  silent_ = Envelope::kAbortRequest;
  connect(std::chrono::milliseconds(500));
  ASSERT_TRUE(preflight());
  target_->interrupt(Error(Code::kCancelled, "alice said so"));
  target_->abort("alice said so");
  EXPECT_EQ(asked_.get_future().wait_for(kPatience), std::future_status::ready);
}

TEST_F(AgentTargetTest, NoConnectionIsMadeAfterAnInterruption) {
  connect();
  target_->interrupt(Error(Code::kCancelled, "alice said so"));
  const auto reply = preflight();
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().message(), "alice said so");
  target_->abort("no agent is left");
}

}  // namespace
}  // namespace gcr::migration
