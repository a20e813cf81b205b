// Which transport a migration uses, given the request, the hosts' hardware, and their
// configuration.
#include "migrate-agent/transfer/negotiation/negotiation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gcr::transfer {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

proto::DataOffer offer(bool rdma, bool unencrypted) {
  proto::DataOffer offer;
  if (!rdma) offer.set_no_rdma("no RDMA device");
  offer.set_unencrypted(unencrypted);
  offer.set_cores(8);
  return offer;
}

class Negotiation : public testing::Test {
 protected:
  Result<DataPlan> plan(proto::Transport transport, bool plaintext = false) const {
    return plan_data({.transport = transport, .plaintext = plaintext}, source_, destination_);
  }

  proto::DataOffer source_ = offer(true, true);
  proto::DataOffer destination_ = offer(true, true);
};

TEST_F(Negotiation, RdmaIsUsedIfBothHaveItAndAllowPlaintext) {
  for (const auto wish : {proto::TRANSPORT_INVALID, proto::TRANSPORT_AUTO, proto::TRANSPORT_RDMA}) {
    const auto plan = this->plan(wish);
    ASSERT_TRUE(plan) << plan.error().message();
    EXPECT_EQ(plan->transport, proto::TRANSPORT_RDMA);
    EXPECT_FALSE(plan->encrypted);
    EXPECT_THAT(plan->reason, IsEmpty());
  }
}

TEST_F(Negotiation, RequestedTcpUsesTlsAndNeedsNoReason) {
  const auto plan = this->plan(proto::TRANSPORT_TCP);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->transport, proto::TRANSPORT_TCP);
  EXPECT_TRUE(plan->encrypted);
  EXPECT_THAT(plan->reason, IsEmpty());
}

TEST_F(Negotiation, HostWithoutRdmaIsTheReasonForTcp) {
  source_ = offer(false, true);
  auto plan = this->plan(proto::TRANSPORT_AUTO);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->transport, proto::TRANSPORT_TCP);
  EXPECT_TRUE(plan->encrypted);
  EXPECT_THAT(plan->reason, AllOf(HasSubstr("source"), HasSubstr("no RDMA device")));
  source_ = offer(true, true);
  destination_ = offer(false, true);
  plan = this->plan(proto::TRANSPORT_AUTO);
  ASSERT_TRUE(plan);
  EXPECT_THAT(plan->reason, AllOf(HasSubstr("destination"), HasSubstr("no RDMA device")));
}

TEST_F(Negotiation, RequiredEncryptionIsTheReasonForTcp) {
  source_.set_unencrypted(false);
  auto plan = this->plan(proto::TRANSPORT_AUTO);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->transport, proto::TRANSPORT_TCP);
  EXPECT_TRUE(plan->encrypted);
  EXPECT_THAT(plan->reason, AllOf(HasSubstr("source"), HasSubstr("unencrypted_data")));
  source_.set_unencrypted(true);
  destination_.set_unencrypted(false);
  plan = this->plan(proto::TRANSPORT_AUTO);
  ASSERT_TRUE(plan);
  EXPECT_THAT(plan->reason, AllOf(HasSubstr("destination"), HasSubstr("unencrypted_data")));
}

TEST_F(Negotiation, RequestedRdmaIsRefusedIfUnavailable) {
  destination_ = offer(false, true);
  const auto plan = this->plan(proto::TRANSPORT_RDMA);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code(), Code::kRefused);
  EXPECT_THAT(plan.error().message(), HasSubstr("destination has no RDMA"));
}

TEST_F(Negotiation, PlaintextNeedsTheConsentOfBoth) {
  auto plan = this->plan(proto::TRANSPORT_TCP, true);
  ASSERT_TRUE(plan);
  EXPECT_FALSE(plan->encrypted);
  for (proto::DataOffer* host : {&source_, &destination_}) {
    host->set_unencrypted(false);
    plan = this->plan(proto::TRANSPORT_TCP, true);
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code(), Code::kRefused);
    host->set_unencrypted(true);
  }
}

TEST_F(Negotiation, FailedRdmaFallsBackToTcpUnlessRequested) {
  const std::string reason = "cannot resolve the address";
  const auto plan =
      plan_without_rdma({.transport = proto::TRANSPORT_AUTO}, source_, destination_, reason);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->transport, proto::TRANSPORT_TCP);
  EXPECT_TRUE(plan->encrypted);
  EXPECT_EQ(plan->reason, reason);
  const auto refused =
      plan_without_rdma({.transport = proto::TRANSPORT_RDMA}, source_, destination_, reason);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kRefused);
  EXPECT_EQ(refused.error().message(), reason);
}

TEST_F(Negotiation, RequestedLanesAreLimited) {
  auto plan = plan_data({.transport = proto::TRANSPORT_TCP, .lanes = 7}, source_, destination_);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->lanes, 7U);
  plan =
      plan_data({.transport = proto::TRANSPORT_TCP, .lanes = 4'000'000'000}, source_, destination_);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->lanes, kMaxLanes);
}

TEST(DefaultLanes, FollowTheSmallerHostAndTheSlowerLink) {
  proto::DataOffer large = offer(true, true);
  large.set_cores(128);
  proto::DataOffer middle = large;
  middle.set_cores(12);
  proto::DataOffer small = large;
  small.set_cores(1);
  EXPECT_EQ(default_lanes(large, large), 16U);
  EXPECT_EQ(default_lanes(large, middle), 6U);
  EXPECT_EQ(default_lanes(small, large), 2U);
  large.set_link_bytes_per_s(12'500'000'000);  // 100 Gbit/s
  EXPECT_EQ(default_lanes(large, large), 13U);
  middle.set_link_bytes_per_s(125'000'000);  // 1 Gbit/s
  EXPECT_EQ(default_lanes(large, middle), 2U);
}

TEST(DefaultLanes, AreWithinTheLimitForEveryOffer) {
  proto::DataOffer hostile;
  hostile.set_cores(~0U);
  hostile.set_link_bytes_per_s(~std::uint64_t{0});
  EXPECT_EQ(default_lanes(hostile, hostile), 16U);
  EXPECT_EQ(default_lanes(hostile, proto::DataOffer()), 2U);
}

TEST(DataOffer, DescribesThisHost) {
  const proto::DataOffer here = data_offer(true);
  EXPECT_GE(here.cores(), 1U);
  EXPECT_TRUE(here.unencrypted());
  EXPECT_FALSE(data_offer(false).unencrypted());
}

}  // namespace
}  // namespace gcr::transfer
