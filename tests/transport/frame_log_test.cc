// A lane's record of the frames that it has sent.
#include "transport/tcp/frame_log.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <string>

namespace gcr::transport {
namespace {

class FrameLogTest : public testing::Test {
 protected:
  /// Adds a kept frame full of `value`.
  void keep(std::size_t bytes, unsigned char value) {
    std::span<std::byte> copy;
    log_.add_kept(1, 0, bytes, copy);
    ASSERT_EQ(copy.size(), bytes);
    std::memset(copy.data(), value, bytes);
  }

  /// Adds kept frames until there is no room.
  std::uint64_t fill(std::size_t bytes) {
    const std::uint64_t before = log_.next();
    while (log_.has_room(bytes)) keep(bytes, static_cast<unsigned char>(log_.next()));
    return log_.next() - before;
  }

  FrameLog log_;
};

TEST_F(FrameLogTest, KeptBytesStayUnchangedUntilTheyLanded) {
  std::uint64_t checked = 0;
  for (int round = 0; round < 20; ++round) {
    fill(kKeptWriteBytes - 1000);  // not a divisor of the buffer: it wraps at all positions
    for (std::uint64_t number = log_.first(); number < log_.next(); ++number, ++checked) {
      const auto bytes = log_.at(number).bytes;
      const auto value = static_cast<std::byte>(number);
      EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [&](auto b) { return b == value; }));
    }
    ASSERT_TRUE(log_.confirm(log_.first() + 1 + static_cast<std::uint64_t>(round) % 7));
  }
  EXPECT_GT(checked, 200U);
}

TEST_F(FrameLogTest, NumberOfFramesIsLimited) {
  EXPECT_EQ(fill(1), FrameLog::kMaxFrames);
  ASSERT_TRUE(log_.confirm(10));
  EXPECT_EQ(fill(1), 10U);
}

TEST_F(FrameLogTest, SmallFramesRequestConfirmationEarly) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{2000}, kKeptWriteBytes}) {
    const std::uint64_t frames = fill(bytes);
    std::uint64_t asking = 0;
    for (auto number = log_.first(); number < log_.next(); ++number) {
      asking += log_.at(number).asks ? 1 : 0;
    }
    EXPECT_GE(asking, 3U) << bytes;
    EXPECT_LE(asking, 2 + frames / 4) << bytes;
    ASSERT_TRUE(log_.confirm(log_.next()));
  }
}

TEST_F(FrameLogTest, WaitingWritersAreLimited) {
  const std::byte byte{};
  std::deque<WaitingWriter> writers;
  while (log_.has_room(0)) log_.add(1, 0, std::span(&byte, 1), writers.emplace_back());
  EXPECT_EQ(writers.size(), FrameLog::kMaxAsks);
  ASSERT_TRUE(log_.confirm(3));
  EXPECT_TRUE(log_.has_room(0));
  EXPECT_EQ(writers[2].unlanded, 0U);
  EXPECT_EQ(writers[3].unlanded, 1U);
}

TEST_F(FrameLogTest, ImpossibleConfirmationsAreProtocolErrors) {
  for (int i = 0; i < 5; ++i) keep(10, 1);
  ASSERT_TRUE(log_.confirm(3));
  for (const std::uint64_t landed : {std::uint64_t{2}, std::uint64_t{6}, ~std::uint64_t{0}}) {
    const Status confirmed = log_.confirm(landed);
    ASSERT_FALSE(confirmed);
    EXPECT_EQ(confirmed.error().code(), Code::kProtocol);
  }
  EXPECT_EQ(log_.first(), 3U);
  EXPECT_TRUE(log_.confirm(5));
}

TEST_F(FrameLogTest, OnlyTheNewestRequestsConfirmationOnResend) {
  fill(kKeptWriteBytes);
  log_.ask_only_newest();
  for (auto number = log_.first(); number + 1 < log_.next(); ++number) {
    EXPECT_FALSE(log_.at(number).asks);
  }
  EXPECT_TRUE(log_.asked());
  ASSERT_TRUE(log_.confirm(log_.next()));
  EXPECT_TRUE(log_.asked());
}

}  // namespace
}  // namespace gcr::transport
