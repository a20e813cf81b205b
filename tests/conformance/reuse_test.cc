// What a caller may do with its bytes, and with its regions, while a transfer runs.
#include <algorithm>
#include <atomic>

#include "tests/conformance/conformance_fixture.h"

namespace gcr::test {
namespace {

class ReuseTest : public ConformanceTest {
 protected:
  ~ReuseTest() override { transfer_.reset(); }  // before source_

  Bytes source_;  ///< outlives the channel
};

TEST_P(ReuseTest, BytesMayChangeOnceAWriteReturned) {
  const Bytes source = random_bytes(2 * kMiB, 1);
  start({.lanes = 2}, source.size());
  Bytes buffer;
  for (std::size_t at = 0, piece = 1; at < source.size();
       at += buffer.size(), piece = piece * 2 + 1) {
    const auto sent = std::span(source).subspan(at, std::min(piece, source.size() - at));
    buffer.assign(sent.begin(), sent.end());
    ASSERT_TRUE(ok(channel().write(kRegion, at, buffer)));
    std::ranges::fill(buffer, std::byte{0xbb});
  }
  ASSERT_TRUE(ok(channel().flush()));
  EXPECT_EQ(landed_, source);
}

TEST_P(ReuseTest, BytesOfASourceMayChangeToo) {
  const Bytes content = random_bytes(kMiB, 2);
  source_.resize(content.size() / 4);
  start({.lanes = 2}, content.size());
  ASSERT_TRUE(ok(channel().add_source(source_)));
  for (std::size_t at = 0; at < content.size(); at += source_.size()) {
    std::copy_n(content.begin() + static_cast<std::ptrdiff_t>(at), source_.size(), source_.begin());
    const auto half = std::span(source_).first(source_.size() / 2);
    ASSERT_TRUE(ok(channel().write(kRegion, at, half)));
    ASSERT_TRUE(
        ok(channel().write(kRegion, at + half.size(), std::span(source_).subspan(half.size()))));
    std::ranges::fill(source_, std::byte{0xbb});
  }
  ASSERT_TRUE(ok(channel().flush()));
  EXPECT_EQ(landed_, content);
}

TEST_P(ReuseTest, WritesFromASourceAndOtherMemoryArrive) {
  source_ = random_bytes(300'001, 3);
  const Bytes elsewhere = random_bytes(300'001, 4);
  start({.lanes = 2}, 2 * source_.size());
  ASSERT_TRUE(ok(channel().add_source(std::span(source_).subspan(1000, 200'000))));
  ASSERT_TRUE(ok(channel().write(kRegion, 0, source_)));  // more than the region has
  ASSERT_TRUE(ok(channel().write(kRegion, 5, std::span(source_).subspan(5, 199'999))));
  ASSERT_TRUE(ok(channel().write(kRegion, source_.size(), elsewhere)));
  ASSERT_TRUE(ok(channel().flush()));
  Bytes expected = source_;
  expected.insert(expected.end(), elsewhere.begin(), elsewhere.end());
  EXPECT_EQ(landed_, expected);
}

TEST_P(ReuseTest, RegionsCanBeAddedDuringWrites) {
  constexpr transport::RegionId kRegions = 40;
  constexpr std::size_t kBytes = 20'000;
  start({.lanes = 2}, kMiB);
  const Bytes content = random_bytes(kBytes, 5);
  std::vector<Bytes> added(kRegions, Bytes(kBytes));
  std::atomic<bool> done = false;
  Outcome background([&]() -> Status {
    const Bytes noise = random_bytes(kMiB / 4, 6);
    for (std::uint64_t i = 0; !done; ++i) {
      GCR_TRY(channel().write(kRegion, i % 4 * noise.size(), noise));
    }
    return {};
  });
  for (transport::RegionId i = 0; i < kRegions; ++i) {
    EXPECT_TRUE(ok(receiver().add_region(100 + i, added[i])));
    EXPECT_TRUE(ok(channel().write(100 + i, 0, content)));
    if (i % 2 == 0) continue;
    EXPECT_TRUE(ok(channel().flush()));
    EXPECT_EQ(added[i], content);
    EXPECT_TRUE(ok(receiver().remove_region(100 + i)));
  }
  done = true;
  EXPECT_TRUE(ok(background.get()));
  EXPECT_TRUE(ok(channel().flush()));
  EXPECT_EQ(std::ranges::count(added, content), static_cast<std::ptrdiff_t>(kRegions));
  EXPECT_TRUE(ok(receiver().health()));
  transfer_.reset();  // before its regions
}

TEST_P(ReuseTest, ReaddedRegionMayUseOtherMemory) {
  start({}, 1000);
  const Bytes first = random_bytes(1000, 7);
  const Bytes second = random_bytes(1000, 8);
  Bytes elsewhere(1000, std::byte{0xee});
  ASSERT_TRUE(ok(write_and_flush(0, first)));
  ASSERT_TRUE(ok(receiver().remove_region(kRegion)));
  ASSERT_TRUE(ok(receiver().add_region(kRegion, elsewhere)));
  const Status again = write_and_flush(0, second);
  EXPECT_EQ(landed_, first) << "a removed region is never written again";
  if (capabilities().knows_regions_at_once) {
    EXPECT_TRUE(ok(again));
    EXPECT_EQ(elsewhere, second);
  } else if (!again) {  // the sender had the key of the removed region
    EXPECT_TRUE(refused(again, Code::kNotFound, "region 5"));
    EXPECT_EQ(elsewhere, Bytes(1000, std::byte{0xee}));
  }
  transfer_.reset();
}

TEST_P(ReuseTest, RemovedRegionIsNotWritten) {
  Latch some_landed(5);
  start({.lanes = 2,
         .on_landed = [&](auto, auto, auto) -> Status {
           if (!some_landed.try_wait()) some_landed.count_down();
           return {};
         }},
        kMiB);
  const Bytes source = random_bytes(kMiB / 4, 9);
  Outcome writer([&] { return write_forever(source, 4); });
  some_landed.wait();
  ASSERT_TRUE(ok(receiver().remove_region(kRegion)));
  std::ranges::fill(landed_, std::byte{0x11});
  EXPECT_TRUE(refused(writer.get(), Code::kNotFound, "region 5"));
  EXPECT_EQ(landed_, Bytes(kMiB, std::byte{0x11}));
  transfer_.reset();  // before the latch
}

GCR_CONFORMANCE_SUITE(ReuseTest);

}  // namespace
}  // namespace gcr::test
