// Requests on separate connections: which agents are trusted, and which messages count as a reply.
#include "src/control/ask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/src/control/peers.h"

namespace gcr::control::test {
namespace {

using proto::Envelope;
using testing::HasSubstr;

const google::protobuf::OneofDescriptor& bodies() {
  return *Envelope::descriptor()->FindOneofByName("body");
}

Envelope alive() {
  Envelope message;
  message.mutable_alive();
  return message;
}

Envelope refusal() {
  Envelope message;
  *message.mutable_failure() = to_failure(Error(Code::kRefused, "not here"));
  return message;
}

Envelope running() {
  Envelope message;
  message.mutable_commit_reply()->set_pid(12);
  return message;
}

class Ask : public testing::Test {
 protected:
  AgentAddress address(std::optional<std::string> name = "node2") {
    return {loopback_.endpoint(), credentials_.context({}), std::move(name), "node1", kPatience};
  }

  /// The result of a CommitRequest to which the agent "node2" replies so.
  Result<Envelope> ask_commit(std::vector<Envelope> answers, const AgentAddress& agent,
                              decltype(ask)& how = ask_for_reply) {
    Result<Envelope> result = Error(Code::kInternal, "nothing came");
    std::vector<asio::awaitable<void>> both;
    both.push_back(serve(std::move(answers)));
    both.push_back(put(agent, how, result));
    loopback_.run(std::move(both));
    return result;
  }

 private:
  asio::awaitable<void> serve(std::vector<Envelope> answers) {
    auto channel = co_await loopback_.accept(tls_);
    if (!channel) co_return;
    const auto question = co_await (*channel)->receive(kPatience);
    for (const Envelope& answer : answers) EXPECT_TRUE(co_await (*channel)->send(answer));
    co_await (*channel)->finish(kPatience);
  }

  static asio::awaitable<void> put(const AgentAddress& agent, decltype(ask)& how,
                                   Result<Envelope>& result) {
    Envelope question;
    question.mutable_commit_request();
    result = co_await how(agent, Uuid::random(), question);
  }

  Credentials credentials_;
  std::shared_ptr<asio::ssl::context> tls_ = credentials_.context({.common_name = "node2"});
  Loopback loopback_;
};

TEST_F(Ask, KeepAlivesAreNoReply) {
  const auto reply = ask_commit({alive(), alive(), running()}, address());
  ASSERT_TRUE(reply) << reply.error().message();
  EXPECT_EQ(reply->commit_reply().pid(), 12);
}

TEST_F(Ask, FailureIsNoReply) {
  const auto answer = ask_commit({refusal()}, address(), ask);
  ASSERT_TRUE(answer) << answer.error().message();
  EXPECT_EQ(answer->failure().message(), "not here");
  const auto reply = ask_commit({refusal()}, address());
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code(), Code::kRefused);
  EXPECT_EQ(reply.error().message(), "not here");
}

TEST_F(Ask, ReplyOfAnotherAgentIsIgnored) {
  const auto reply = ask_commit({}, address("node3"));
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(reply.error().message(), HasSubstr("is \"node2\", not \"node3\""));
}

TEST_F(Ask, ReplyOfAnyAgentIsAcceptedIfNoneIsNamed) {
  EXPECT_TRUE(ask_commit({running()}, address(std::nullopt)));
}

TEST(CheckReply, EveryReplyFollowsItsRequestsNumber) {
  int replies = 0;
  for (int i = 0; i < bodies().field_count(); ++i) {
    const std::string& name = bodies().field(i)->name();
    if (!name.ends_with("_reply")) continue;
    ++replies;
    const auto* request =
        Envelope::descriptor()->FindFieldByNumber(bodies().field(i)->number() - 1);
    ASSERT_NE(request, nullptr) << name;
    EXPECT_EQ(request->name(), name.substr(0, name.rfind('_')) + "_request");
  }
  EXPECT_GT(replies, 10);
}

TEST(CheckReply, ReplyToAnotherRequestIsAProtocolError) {
  Envelope question;
  question.mutable_outcome_request();
  const auto reply = check_reply(question, running(), "the agent at node2:7411");
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code(), Code::kProtocol);
  EXPECT_EQ(reply.error().message(),
            "the agent at node2:7411 answered OutcomeRequest with CommitReply");
}

}  // namespace
}  // namespace gcr::control::test
