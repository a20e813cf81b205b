// The wire format of the TCP transport's frames.
#include "transport/tcp/frame.h"

#include <gtest/gtest.h>

#include <string>

namespace gcr::transport {
namespace {

FrameHeader some_write() {
  return {.type = FrameType::kWrite,
          .asks = true,
          .region = 0x01020304,
          .length_bytes = 0x00100203,
          .offset = 0x1112131415161718,
          .sequence = 0x2122232425262728};
}

HeaderBytes changed(const FrameHeader& header, std::size_t at, unsigned value) {
  HeaderBytes bytes = encode(header);
  bytes[at] = static_cast<std::byte>(value);
  return bytes;
}

TEST(Frame, HeaderIsLittleEndianAsDocumented) {
  const unsigned char expected[kHeaderBytes] = {'G',  'C',  'R',  '1',  3,    0,    1,    0,
                                                4,    3,    2,    1,    3,    2,    0x10, 0,
                                                0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
                                                0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21};
  const HeaderBytes bytes = encode(some_write());
  for (std::size_t i = 0; i < kHeaderBytes; ++i) {
    EXPECT_EQ(std::to_integer<unsigned>(bytes[i]), expected[i]) << i;
  }
}

TEST(Frame, EveryTypeSurvivesTheRoundTrip) {
  const FrameHeader headers[] = {
      some_write(),
      {.type = FrameType::kHello, .length_bytes = kHelloBytes},
      {.type = FrameType::kWelcome, .sequence = 1},
      {.type = FrameType::kFlush, .sequence = 2},
      {.type = FrameType::kLanded, .sequence = 3},
      {.type = FrameType::kError, .length_bytes = kMaxErrorBytes},
      {.type = FrameType::kEnd, .sequence = ~std::uint64_t{0}},
  };
  for (const FrameHeader& header : headers) {
    const auto decoded = decode(encode(header));
    ASSERT_TRUE(decoded) << decoded.error().message();
    EXPECT_EQ(*decoded, header);
  }
}

TEST(Frame, ImpossibleHeadersAreProtocolErrors) {
  FrameHeader empty = some_write();
  empty.length_bytes = 0;
  FrameHeader long_write = some_write();
  long_write.length_bytes = kMaxFramePayloadBytes + 1;
  FrameHeader flush_with_payload{.type = FrameType::kFlush, .length_bytes = 1};
  FrameHeader flush_with_address{.type = FrameType::kFlush, .region = 1};
  FrameHeader flush_that_asks{.type = FrameType::kFlush, .asks = true};
  FrameHeader long_error{.type = FrameType::kError, .length_bytes = kMaxErrorBytes + 1};
  FrameHeader short_error{.type = FrameType::kError, .length_bytes = 1};
  FrameHeader short_hello{.type = FrameType::kHello, .length_bytes = kHelloBytes - 1};
  const HeaderBytes impossible[] = {HeaderBytes{},
                                    changed(some_write(), 0, 'X'),
                                    changed(some_write(), 4, 0),
                                    changed(some_write(), 4, 8),
                                    changed(some_write(), 5, 1),
                                    changed(some_write(), 6, 2),
                                    changed(some_write(), 7, 1),
                                    encode(empty),
                                    encode(long_write),
                                    encode(flush_with_payload),
                                    encode(flush_with_address),
                                    encode(flush_that_asks),
                                    encode(long_error),
                                    encode(short_error),
                                    encode(short_hello)};
  for (const HeaderBytes& bytes : impossible) {
    const auto decoded = decode(bytes);
    ASSERT_FALSE(decoded);
    EXPECT_EQ(decoded.error().code(), Code::kProtocol);
  }
}

TEST(Frame, HelloSurvivesARoundTripWithAnyToken) {
  for (const std::string& token : {std::string(), std::string("t"), std::string("\0\1\xff", 3),
                                   std::string(kMaxTokenBytes, 'x')}) {
    const Uuid session = Uuid::random();
    const auto decoded =
        decode(encode(Hello{.lane = 3, .lanes = 4, .session = session, .token = token}));
    ASSERT_TRUE(decoded) << decoded.error().message();
    EXPECT_EQ(decoded->lane, 3);
    EXPECT_EQ(decoded->lanes, 4);
    EXPECT_EQ(decoded->session, session);
    EXPECT_EQ(decoded->token, token);
  }
}

TEST(Frame, BadHellosAreUnsupportedOrProtocolErrors) {
  const auto other_version =
      decode(encode(Hello{.version = 1, .lane = 0, .lanes = 1, .session = {}, .token = {}}));
  ASSERT_FALSE(other_version);
  EXPECT_EQ(other_version.error().code(), Code::kUnsupported);
  HelloBytes long_token = encode(Hello{.lane = 0, .lanes = 1, .session = {}, .token = {}});
  long_token[6] = static_cast<std::byte>(kMaxTokenBytes + 1);
  const HelloBytes malformed[] = {long_token,
                                  encode(Hello{.lane = 1, .lanes = 1, .session = {}, .token = {}}),
                                  encode(Hello{.lane = 0, .lanes = 0, .session = {}, .token = {}})};
  for (const HelloBytes& bytes : malformed) {
    const auto decoded = decode(bytes);
    ASSERT_FALSE(decoded);
    EXPECT_EQ(decoded.error().code(), Code::kProtocol);
  }
}

TEST(Frame, ErrorsCarryCodeAndText) {
  const std::string payload = encode_error(Error(Code::kDataLoss, "chunk 7 differs"));
  const Error error = decode_error(std::as_bytes(std::span(payload)));
  EXPECT_EQ(error.code(), Code::kDataLoss);
  EXPECT_EQ(error.message(), "chunk 7 differs");
}

TEST(Frame, LongErrorsAreTruncated) {
  const std::string payload = encode_error(Error(Code::kIo, std::string(5000, 'e')));
  EXPECT_EQ(payload.size(), kMaxErrorBytes);
}

TEST(Frame, ErrorsOfAHostilePeerAreSanitised) {
  const std::string payload("\xff\xffline\nbreak\x1b[2J", 16);
  const Error error = decode_error(std::as_bytes(std::span(payload)));
  EXPECT_EQ(error.code(), Code::kProtocol);
  EXPECT_EQ(error.message(), "line?break?[2J");
  EXPECT_EQ(decode_error({}).code(), Code::kProtocol);
}

}  // namespace
}  // namespace gcr::transport
