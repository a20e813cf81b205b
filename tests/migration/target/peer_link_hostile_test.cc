// A destination that answers a request with a reply of another kind: it must not be read as an
// empty reply, and never as a vote.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "migrate-agent/migration/target/agent/peer_link.h"
#include "tests/src/control/peers.h"

namespace gcr::migration {
namespace {

using control::test::kPatience;
using proto::Envelope;

const google::protobuf::OneofDescriptor& bodies() {
  return *Envelope::descriptor()->FindOneofByName("body");
}

/// An empty message of the kind that `field` names.
Envelope message_of(const google::protobuf::FieldDescriptor& field) {
  Envelope message;
  message.GetReflection()->MutableMessage(&message, &field);
  return message;
}

Envelope message_of(const char* name) {
  return message_of(*Envelope::descriptor()->FindFieldByName(name));
}

class PeerLinkHostile : public testing::Test {
 protected:
  PeerLinkHostile() {
    auto [server, client] =
        loopback_.connect_both(credentials_.context({}), credentials_.context({}));
    destination_ = std::move(*server);
    source_ = std::make_shared<PeerLink>(loopback_.io(), std::move(*client), kPatience);
  }

  Result<Envelope> call(const Envelope& request, const Envelope& answer) {
    Result<Envelope> result = Error(Code::kInternal, "nothing came");
    std::vector<asio::awaitable<void>> both;
    both.push_back(serve(answer));
    both.push_back(put(request, result));
    loopback_.run(std::move(both));
    return result;
  }

 private:
  asio::awaitable<void> serve(Envelope answer) {
    EXPECT_TRUE(co_await destination_->receive(kPatience));
    EXPECT_TRUE(co_await destination_->send(message_of("alive")));
    EXPECT_TRUE(co_await destination_->send(answer));
  }

  asio::awaitable<void> put(const Envelope& request, Result<Envelope>& result) {
    result = co_await source_->call(request);
  }

  control::test::Credentials credentials_;
  control::test::Loopback loopback_;
  std::unique_ptr<control::ControlChannel> destination_;
  std::shared_ptr<PeerLink> source_;
};

struct Pair {
  const char* request;
  std::vector<std::string> replies;
};

class PeerLinkAnswers : public PeerLinkHostile, public testing::WithParamInterface<Pair> {};

TEST_P(PeerLinkAnswers, OnlyTheMatchingReplyIsAccepted) {
  const Envelope request = message_of(GetParam().request);
  for (int i = 0; i < bodies().field_count(); ++i) {
    const google::protobuf::FieldDescriptor& answer = *bodies().field(i);
    if (answer.name() == "alive" || answer.name() == "failure") continue;
    const auto reply = call(request, message_of(answer));
    const bool own = std::ranges::count(GetParam().replies, answer.name()) != 0;
    EXPECT_EQ(reply.has_value(), own) << answer.name();
    if (reply) continue;
    EXPECT_EQ(reply.error().code(), Code::kProtocol) << reply.error().message();
  }
}

INSTANTIATE_TEST_SUITE_P(, PeerLinkAnswers,
                         testing::Values(Pair{"preflight_request", {"preflight_reply"}},
                                         Pair{"prepare_request", {"prepare_reply"}},
                                         Pair{"fall_back_request", {"fall_back_reply"}},
                                         Pair{"clock_request", {"clock_reply"}},
                                         Pair{"buffers_request", {"buffers_reply"}},
                                         Pair{"restore_request", {"restore_reply"}},
                                         Pair{"commit_request", {"commit_reply", "copy_lost"}},
                                         Pair{"abort_request", {"abort_reply"}}),
                         [](const auto& info) { return std::string(info.param.request); });

}  // namespace
}  // namespace gcr::migration
