// Images from descriptors to files over a real TCP connection.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <thread>

#include "tests/transfer/images/transfer_fixture.h"

namespace gcr::images::test {
namespace {

TEST_F(Images, ConcurrentImagesArriveThroughASmallRing) {
  connect(3, 4);
  std::map<std::string, std::string> contents;
  for (int i = 0; i < 12; ++i) {
    contents["pages-" + std::to_string(i) + ".img"] =
        noise(static_cast<std::size_t>(i) * 977777, static_cast<std::uint64_t>(i));
  }
  {
    std::vector<std::jthread> takers;
    for (const auto& [name, content] : contents) {
      takers.emplace_back([&] { EXPECT_TRUE(take(name, content)); });
    }
  }
  const SentImages sent = finish();
  EXPECT_EQ(sent.files.size(), contents.size());
  for (const auto& [name, content] : contents) EXPECT_EQ(received(name), content) << name;
}

TEST_F(Images, ImagesReadByOffsetArriveWithoutZeros) {
  connect(3, 4);
  const std::string content = noise(5 * kMiB, 1) + std::string(4 * kMiB, '\0') + noise(77'777, 2);
  const auto read = [&](std::uint64_t offset, std::span<std::byte> bytes) -> Status {
    std::memcpy(bytes.data(), content.data() + offset, bytes.size());
    return {};
  };
  ASSERT_TRUE(sender_->take_content("pages-1.img", content.size(), read));
  ASSERT_TRUE(sender_->take_content("empty.img", 0, read));
  const SentImages sent = finish();
  EXPECT_EQ(sent.raw_bytes, content.size());
  EXPECT_EQ(sent.zero_bytes, 4 * kMiB);
  EXPECT_EQ(received("pages-1.img"), content);
  EXPECT_EQ(received("empty.img"), "");
}

TEST_F(Images, UnreadableImageIsAnError) {
  connect(3, 4);
  const auto read = [](std::uint64_t offset, std::span<std::byte>) -> Status {
    if (offset < 2 * kMiB) return {};
    return Error(Code::kDataLoss, "it is damaged");
  };
  const Status taken = sender_->take_content("pages-1.img", 8 * kMiB, read);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().message(), "it is damaged");
}

TEST_F(Images, ZeroPagesAreNotSent) {
  connect(4, 2);
  std::string content(40 * kMiB + 5, '\0');
  content[0] = 'a';
  content[10 * kMiB + 5 * kPageBytes] = 'b';
  content.back() = 'c';
  ASSERT_TRUE(take("pages-1.img", content));
  ASSERT_TRUE(take("zeros.img", std::string(3 * kMiB + 7, '\0')));
  const SentImages sent = finish();
  EXPECT_EQ(sent.raw_bytes, 43 * kMiB + 12);
  EXPECT_EQ(sent.zero_bytes, sent.raw_bytes - 2 * kPageBytes - 5);
  EXPECT_EQ(sent.sent_bytes, 2 * kPageBytes + 5 + 3 * kBlockHeaderBytes);
  EXPECT_EQ(received("pages-1.img"), content);
  EXPECT_EQ(received("zeros.img"), std::string(3 * kMiB + 7, '\0'));
}

TEST_F(Images, CompressedImagesArriveWhole) {
  for (const auto& [compression, codec] :
       {std::pair{store::Compression::kLz4, store::Codec::kLz4},
        std::pair{store::Compression::kZstd, store::Codec::kZstd}}) {
    directory_ = *ScratchDirectory::create(unique_path());
    connect(4, 2, compression);
    const std::string content = text(5 * kMiB, 1) + noise(5 * kMiB, 2) + text(12345, 3);
    ASSERT_TRUE(take("a.img", content));
    const SentImages sent = finish();
    EXPECT_EQ(sent.codec, codec);
    EXPECT_LT(sent.sent_bytes, 8 * kMiB);
    EXPECT_EQ(received("a.img"), content);
    sender_.reset();
    transfer_.reset();
  }
}

TEST_F(Images, FullStoreEndsTheSender) {
  connect(2, 2, store::Compression::kNone, 8 * kMiB);
  const Status taken = take("pages-1.img", noise(64 * kMiB, 1));
  const auto sent = sender_->finish();
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code(), Code::kResourceExhausted) << sent.error().message();
}

TEST_F(Images, BrokenNetworkEndsTheSender) {
  connect(2, 2);
  transfer_->cut_after(static_cast<std::int64_t>(5 * kMiB));
  const Status taken = take("pages-1.img", noise(64 * kMiB, 1));
  const auto sent = sender_->finish();
  EXPECT_FALSE(sent);
  EXPECT_TRUE(!taken || !sent);
  EXPECT_FALSE(take("a.img", "more"));
}

TEST_F(Images, CancelledChannelWakesTheSender) {
  connect(1, 1);
  transfer_->stall();
  std::jthread taker([this] { EXPECT_FALSE(take("pages-1.img", noise(64 * kMiB, 1))); });
  transfer_->channel().cancel();
}

TEST_F(Images, RegionTooSmallForABlockIsRefused) {
  connect(1, 1);
  const auto sender = ImageSender::create(transfer_->channel(), {kRegion, kSlotBytes - 1});
  ASSERT_FALSE(sender);
  EXPECT_EQ(sender.error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace gcr::images::test
