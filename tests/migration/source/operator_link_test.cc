// Messages to an operator, from a sender that never waits for them.
#include "migrate-agent/migration/engine/operator_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/use_awaitable.hpp>

#include "tests/src/control/peers.h"

namespace gcr::migration {
namespace {

using control::ControlChannel;
using control::test::kPatience;
using testing::ElementsAre;

class OperatorLinkTest : public testing::Test {
 protected:
  OperatorLinkTest() {
    auto [server, client] = loopback_.connect_both(credentials_.context({}),
                                                   credentials_.context({.role = "operator"}));
    agent_ = std::move(*server);
    operator_ = std::move(*client);
    link_.emplace(loopback_.io(), *agent_);
  }

  void run(asio::awaitable<void> work) {
    std::vector<asio::awaitable<void>> one;
    one.push_back(std::move(work));
    loopback_.run(std::move(one));
  }

  /// Sends until `work` has ended.
  asio::awaitable<void> while_writing(asio::awaitable<void> work) {
    using asio::experimental::awaitable_operators::operator||;
    co_await (std::move(work) || link_->write());
  }

  /// Sends all messages; ends when the operator has them, or is gone.
  void send_all() {
    link_->finish();
    run(link_->write());
  }

  static proto::Progress at_round(unsigned round) {
    proto::Progress progress;
    progress.set_round(round);
    return progress;
  }

  asio::awaitable<proto::Envelope> next() {
    auto message = co_await operator_->receive(kPatience);
    EXPECT_TRUE(message);
    co_return message ? std::move(*message) : proto::Envelope();
  }

  control::test::Credentials credentials_;
  control::test::Loopback loopback_;
  std::unique_ptr<ControlChannel> agent_, operator_;
  std::optional<OperatorLink> link_;
};

TEST_F(OperatorLinkTest, MessagesArriveInOrderBeforeProgress) {
  link_->show(at_round(1));
  link_->tell("preflight", "one");
  link_->tell("prepare", "two");
  run(while_writing([this]() -> asio::awaitable<void> {
    std::vector<std::string> texts;
    for (int i = 0; i < 2; ++i) texts.push_back((co_await next()).event().text());
    EXPECT_THAT(texts, ElementsAre("one", "two"));
    EXPECT_EQ((co_await next()).progress().round(), 1U);
  }()));
}

TEST_F(OperatorLinkTest, OnlyTheNewestProgressIsSent) {
  for (unsigned round = 1; round <= 1000; ++round) link_->show(at_round(round));
  link_->tell("switchover", "closing the gate");
  run(while_writing([this]() -> asio::awaitable<void> {
    EXPECT_TRUE((co_await next()).has_event());
    EXPECT_EQ((co_await next()).progress().round(), 1000U);
    link_->show(at_round(1001));
    EXPECT_EQ((co_await next()).progress().round(), 1001U);
  }()));
}

TEST_F(OperatorLinkTest, StalledOperatorDoesNotBlockTheSender) {
  // More than each socket buffer holds: writing blocks, sending messages does not, and nothing is
  // lost.
  constexpr unsigned kMessages = 64;
  const std::string much(1 << 20, 'x');
  unsigned arrived = 0;
  run(while_writing([&]() -> asio::awaitable<void> {
    for (unsigned i = 1; i <= kMessages; ++i) {
      link_->tell("precopy", much);
      link_->show(at_round(i));
      co_await asio::post(loopback_.io(), asio::use_awaitable);
    }
    while ((co_await next()).event().text() == much) ++arrived;
  }()));
  EXPECT_EQ(arrived, kMessages) << "the progress comes after them";
}

TEST_F(OperatorLinkTest, WritingEndsAfterTheReport) {
  for (int i = 0; i < 100; ++i) link_->tell("precopy", std::string(10'000, 'x'));
  proto::Envelope report;
  report.mutable_migrate_report()->set_migrated(true);
  link_->tell(std::move(report));
  link_->show(at_round(1));
  link_->finish();
  unsigned events = 0;
  const auto take_all = [&]() -> asio::awaitable<void> {
    while (!(co_await next()).has_migrate_report()) ++events;
  };
  using asio::experimental::awaitable_operators::operator&&;
  run(link_->write() && take_all());
  EXPECT_EQ(events, 100U);
}

TEST_F(OperatorLinkTest, DisconnectedOperatorBlocksNothing) {
  operator_->close();
  for (int i = 0; i < 100; ++i) link_->tell("precopy", std::string(100'000, 'x'));
  send_all();
}

TEST_F(OperatorLinkTest, OperatorWithTooMuchUnreadGetsNothingMore) {
  for (std::size_t i = 0; i <= OperatorLink::kMaxWaiting; ++i) link_->tell("precopy", "round");
  link_->tell("precopy", "one more");
  send_all();
  agent_->close();
  run([this]() -> asio::awaitable<void> {
    EXPECT_FALSE(co_await operator_->receive(kPatience)) << "something was sent";
  }());
}

}  // namespace
}  // namespace gcr::migration
