// A destination's reply cannot make the source send what its own side did not consent to: no
// connection is made then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include "migrate-agent/transfer/negotiation/outgoing_data.h"
#include "tests/support/tcp_relay.h"

namespace gcr::transfer {
namespace {

using testing::HasSubstr;

class ConsentHostile : public testing::Test {
 protected:
  ConsentHostile() {
    reply_.set_lanes(1);
    reply_.set_transport(proto::TRANSPORT_TCP);
    reply_.set_encrypted(true);
    reply_.add_data_addresses()->set_host("127.0.0.1");
    options_.destination = {"127.0.0.1", listener_.port()};
    options_.peer_timeout = std::chrono::milliseconds(1000);
    options_.offer.set_unencrypted(true);
  }

  /// The result, which must be an error of the peer before any connection was made.
  std::string refusal() {
    std::vector<std::string> notes;
    std::jthread server([this] {
      while (UniqueFd socket = listener_.accept()) connected_ = true;
    });
    const auto channel = open_channel(reply_, options_, notes);
    listener_.stop();
    server.join();
    EXPECT_FALSE(connected_);
    EXPECT_FALSE(channel);
    if (channel) return {};
    EXPECT_EQ(channel.error().code(), Code::kProtocol) << channel.error().message();
    return channel.error().message();
  }

  test::LoopbackListener listener_;
  proto::PrepareReply reply_;
  OutgoingOptions options_;
  std::atomic<bool> connected_ = false;
};

TEST_F(ConsentHostile, UnrequestedPlaintextIsNotSent) {
  reply_.set_encrypted(false);
  EXPECT_THAT(refusal(), HasSubstr("did not ask for data without TLS"));
}

TEST_F(ConsentHostile, PlaintextNeedsTheConfigurationsConsent) {
  reply_.set_encrypted(false);
  options_.wish.plaintext = true;
  options_.offer.set_unencrypted(false);
  EXPECT_THAT(refusal(), HasSubstr("unencrypted_data"));
}

TEST_F(ConsentHostile, RdmaNeedsTheConfigurationsConsent) {
  reply_.set_transport(proto::TRANSPORT_RDMA);
  options_.offer.set_unencrypted(false);
  EXPECT_THAT(refusal(), HasSubstr("unencrypted_data"));
}

TEST_F(ConsentHostile, RdmaIsNotUsedIfTheOperatorWantsTcp) {
  reply_.set_transport(proto::TRANSPORT_RDMA);
  options_.wish.transport = proto::TRANSPORT_TCP;
  EXPECT_THAT(refusal(), HasSubstr("another transport"));
}

TEST_F(ConsentHostile, TcpIsNotUsedIfTheOperatorWantsRdma) {
  options_.wish.transport = proto::TRANSPORT_RDMA;
  EXPECT_THAT(refusal(), HasSubstr("another transport"));
}

TEST_F(ConsentHostile, UnknownTransportIsRefused) {
  reply_.set_transport(proto::TRANSPORT_AUTO);
  EXPECT_THAT(refusal(), HasSubstr("another transport"));
}

}  // namespace
}  // namespace gcr::transfer
