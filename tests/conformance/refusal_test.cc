// The requests that a receiver refuses; the sender learns the reason.
#include "tests/conformance/conformance_fixture.h"

namespace gcr::test {
namespace {

using RefusalTest = ConformanceTest;

TEST_P(RefusalTest, WriteBeyondTheRegionIsRefused) {
  start({}, 1000);
  const Bytes source = random_bytes(1001, 1);
  EXPECT_TRUE(refused(write_and_flush(0, source), Code::kInvalidArgument,
                      "write of 1001 bytes at offset 0 does not fit region 5 of 1000 bytes"));
  EXPECT_EQ(landed_, Bytes(1000, std::byte{0xee}));
  EXPECT_TRUE(becomes_true([&] { return !receiver().health(); }));
  EXPECT_TRUE(refused(receiver().health(), Code::kInvalidArgument, "does not fit"));
}

TEST_P(RefusalTest, OffsetsThatOverflowAreRefused) {
  for (const std::uint64_t offset :
       {std::uint64_t{1001}, ~std::uint64_t{0}, ~std::uint64_t{0} - 9, std::uint64_t{1} << 63}) {
    start({}, 1000);
    EXPECT_TRUE(refused(write_and_flush(offset, random_bytes(10, 2)), Code::kInvalidArgument,
                        "does not fit"));
    EXPECT_EQ(landed_, Bytes(1000, std::byte{0xee}));
    transfer_.reset();
  }
}

TEST_P(RefusalTest, UnknownRegionIsRefused) {
  start({}, 1000);
  const Bytes source = random_bytes(10, 3);
  (void)channel().write(kRegion + 1, 0, source);  // may be reported now, or at the flush
  EXPECT_TRUE(refused(channel().flush(), Code::kNotFound, "region 6"));
}

TEST_P(RefusalTest, RemovedRegionIsRefused) {
  start({}, 1000);
  const Bytes source = random_bytes(10, 4);
  ASSERT_TRUE(ok(write_and_flush(0, source)));
  ASSERT_TRUE(ok(receiver().remove_region(kRegion)));
  const Bytes before = landed_;
  EXPECT_TRUE(refused(write_and_flush(20, source), Code::kNotFound, "region 5"));
  EXPECT_EQ(landed_, before);
}

TEST_P(RefusalTest, RegionCanBeAddedAndRemovedOnce) {
  start({}, 1000);
  EXPECT_TRUE(fails_with(receiver().add_region(kRegion, landed_), Code::kInvalidArgument));
  EXPECT_TRUE(ok(receiver().remove_region(kRegion)));
  EXPECT_TRUE(fails_with(receiver().remove_region(kRegion), Code::kNotFound));
  EXPECT_TRUE(ok(receiver().add_region(kRegion, landed_)));
  EXPECT_TRUE(ok(write_and_flush(0, random_bytes(1000, 5))));
}

TEST_P(RefusalTest, BrokenChannelRepeatsItsFirstError) {
  start({.lanes = 2}, 1000);
  const Status first = write_and_flush(999, random_bytes(2, 6));
  ASSERT_FALSE(first);
  EXPECT_TRUE(fails_with(channel().flush(), first.error().code(), first.error().message()));
  EXPECT_TRUE(fails_with(channel().write(kRegion, 0, random_bytes(1, 7)), first.error().code(),
                         first.error().message()));
}

TEST_P(RefusalTest, ErrorOnOneLaneReachesWritersOnAllLanes) {
  start({.lanes = 4}, kMiB);
  const Bytes source = random_bytes(1000, 8);
  (void)channel().write(kRegion + 9, 0, source);  // may be reported now
  // Writers that never flush get the error too.
  Outcome writer([&] { return write_forever(source, 4); });
  EXPECT_TRUE(refused(writer.get(), Code::kNotFound, "region 14"));
}

TEST_P(RefusalTest, WrongTokenIsRefused) {
  prepare({.wrong_token = true}, 1000);
  if (capabilities().shows_token) {
    EXPECT_TRUE(fails_with(transfer_->connect(), Code::kPermissionDenied, "token"));
  } else {
    EXPECT_TRUE(ok(transfer_->connect()));
  }
  EXPECT_TRUE(ok(receiver().health()));
}

TEST_P(RefusalTest, CertificateOfAnotherAuthorityIsRefused) {
  prepare({.wrong_authority = true}, 1000);
  if (capabilities().certificates) {
    EXPECT_TRUE(fails_with(transfer_->connect(), Code::kPermissionDenied, "unknown ca"));
  } else {
    EXPECT_TRUE(ok(transfer_->connect()));
  }
  EXPECT_TRUE(ok(receiver().health()));
}

TEST_P(RefusalTest, CertificateOfAnotherRoleIsRefused) {
  prepare({.wrong_role = true}, 1000);
  if (capabilities().certificates) {
    EXPECT_TRUE(fails_with(transfer_->connect(), Code::kPermissionDenied, "another role"));
  } else {
    EXPECT_TRUE(ok(transfer_->connect()));
  }
  EXPECT_TRUE(ok(receiver().health()));
}

GCR_CONFORMANCE_SUITE(RefusalTest);

}  // namespace
}  // namespace gcr::test
