// Prefaces, endpoints and failures: parsers of untrusted bytes and text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "src/control/control_channel.h"

namespace gcr::control {
namespace {

using testing::HasSubstr;
using PrefaceBytes = std::array<std::uint8_t, kPrefaceBytes>;

Preface data_preface() { return {ConnectionKind::kData, Uuid::random()}; }

TEST(Preface, SurvivesARoundTrip) {
  const Preface sent = data_preface();
  const auto bytes = sent.encode();
  EXPECT_TRUE(std::ranges::equal(std::span(bytes).first<4>(), std::string_view("GCRM")));
  const auto received = Preface::decode(bytes);
  ASSERT_TRUE(received) << received.error().message();
  EXPECT_EQ(received->kind, ConnectionKind::kData);
  EXPECT_EQ(received->migration, sent.migration);
}

struct Damage {
  const char* name;
  std::size_t at;
  std::uint8_t value;
  const char* says;
};

class DamagedPreface : public testing::TestWithParam<Damage> {};

TEST_P(DamagedPreface, IsRefused) {
  PrefaceBytes bytes = data_preface().encode();
  bytes[GetParam().at] = GetParam().value;
  const auto decoded = Preface::decode(bytes);
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code(), Code::kProtocol);
  EXPECT_THAT(decoded.error().message(), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(EachField, DamagedPreface,
                         testing::Values(Damage{"FirstByte", 0, 'H', "48 43 52 4d"},
                                         Damage{"LastOfMagic", 3, 0, "00"},
                                         Damage{"VersionZero", 4, 0, "version 0"},
                                         Damage{"NextVersion", 4, 2, "version 2"},
                                         Damage{"KindZero", 5, 0, "kind 0"},
                                         Damage{"KindUnknown", 5, 3, "kind 3"},
                                         Damage{"FirstReserved", 6, 1, "reserved"},
                                         Damage{"SecondReserved", 7, 255, "reserved"}),
                         [](const auto& info) { return info.param.name; });

TEST(Preface, HttpRequestIsRefused) {
  PrefaceBytes bytes{};
  std::ranges::copy(std::string_view("GET / HTTP/1.1\r\nHost: x\r"), bytes.begin());
  const auto decoded = Preface::decode(bytes);
  ASSERT_FALSE(decoded);
  EXPECT_THAT(decoded.error().message(), HasSubstr("not a connection of gcr-migrate"));
}

struct GoodEndpoint {
  const char* text;
  const char* host;
  std::uint16_t port;
  const char* written;
};

class EndpointText : public testing::TestWithParam<GoodEndpoint> {};

TEST_P(EndpointText, NamesHostAndPort) {
  const auto endpoint = Endpoint::parse(GetParam().text);
  ASSERT_TRUE(endpoint) << endpoint.error().message();
  EXPECT_EQ(endpoint->host, GetParam().host);
  EXPECT_EQ(endpoint->port, GetParam().port);
  EXPECT_EQ(endpoint->to_string(), GetParam().written);
}

INSTANTIATE_TEST_SUITE_P(
    All, EndpointText,
    testing::Values(GoodEndpoint{"node1", "node1", 7411, "node1:7411"},
                    GoodEndpoint{"10.0.0.2:80", "10.0.0.2", 80, "10.0.0.2:80"},
                    GoodEndpoint{"[fe80::1]:65535", "fe80::1", 65535, "[fe80::1]:65535"},
                    GoodEndpoint{"[::1]", "::1", 7411, "[::1]:7411"},
                    GoodEndpoint{"fe80::1%eth0", "fe80::1%eth0", 7411, "[fe80::1%eth0]:7411"}));

class NoEndpoint : public testing::TestWithParam<std::string> {};

TEST_P(NoEndpoint, IsRefusedAndQuoted) {
  const auto endpoint = Endpoint::parse(GetParam());
  ASSERT_FALSE(endpoint);
  EXPECT_EQ(endpoint.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(endpoint.error().message(), HasSubstr(printable(GetParam())));
}

INSTANTIATE_TEST_SUITE_P(All, NoEndpoint,
                         testing::Values("", ":7411", "a:", "a:0", "a:65536", "a:-1", "a:12x",
                                         "[::1", "[::1]7411", "[]:1", "a b", "a/b", "user@a",
                                         "a\nb", std::string(300, 'a')));

TEST(Failure, SurvivesARoundTrip) {
  for (int value = static_cast<int>(Code::kInvalidArgument);
       value <= static_cast<int>(Code::kInternal); ++value) {
    const Error sent(static_cast<Code>(value), "cannot do it: 3 MiB free");
    const Error received = from_failure(to_failure(sent));
    EXPECT_EQ(received.code(), sent.code());
    EXPECT_EQ(received.message(), sent.message());
  }
}

TEST(Failure, UnknownCodeBecomesInternal) {
  proto::Failure failure;
  failure.set_code("a-code-of-tomorrow");
  failure.set_message("first\nsecond\x1b[31m" + std::string(10'000, 'x'));
  const Error error = from_failure(failure);
  EXPECT_EQ(error.code(), Code::kInternal);
  EXPECT_THAT(error.message(), testing::StartsWith("first?second?[31m"));
  EXPECT_EQ(error.message().size(), 4096U);
}

}  // namespace
}  // namespace gcr::control
