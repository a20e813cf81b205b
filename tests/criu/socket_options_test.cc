// Options of sockets, here of the test itself: read from one socket, and set in a new one.
#include "migrate-agent/criu/sockets/socket_options.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "src/base/unique_fd.h"

namespace gcr::criu {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kSoPassPidfd = 76;

struct Option {
  int level;
  int name;
  int value;
};

struct Kind {
  std::string name;
  int domain;
  int type;
  std::vector<Option> options;

  UniqueFd make() const { return UniqueFd(::socket(domain, type | SOCK_CLOEXEC, 0)); }
};

std::vector<Kind> kinds() {
  const std::vector<Option> ip{
      {IPPROTO_IP, IP_TOS, 0x10},          {IPPROTO_IP, IP_TTL, 33},
      {IPPROTO_IP, IP_RECVERR, 1},         {IPPROTO_IP, IP_RECVTOS, 1},
      {IPPROTO_IP, IP_RECVTTL, 1},         {IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE},
      {IPPROTO_IP, IP_MINTTL, 5},          {IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1},
      {SOL_SOCKET, SO_TIMESTAMPNS, 1},     {SOL_SOCKET, SO_RXQ_OVFL, 1},
      {SOL_SOCKET, SO_SELECT_ERR_QUEUE, 1}};
  const std::vector<Option> ipv6{
      {IPPROTO_IPV6, IPV6_TCLASS, 0x20},    {IPPROTO_IPV6, IPV6_UNICAST_HOPS, 7},
      {IPPROTO_IPV6, IPV6_RECVERR, 1},      {IPPROTO_IPV6, IPV6_RECVTCLASS, 1},
      {IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1}, {IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE},
      {IPPROTO_IPV6, IPV6_DONTFRAG, 1},     {IPPROTO_IPV6, IPV6_MINHOPCOUNT, 3},
      {IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 0}};
  const std::vector<Option> tcp{
      {IPPROTO_TCP, TCP_USER_TIMEOUT, 54321}, {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1 << 16},
      {IPPROTO_TCP, TCP_LINGER2, 17},         {IPPROTO_TCP, TCP_SYNCNT, 3},
      {IPPROTO_TCP, TCP_DEFER_ACCEPT, 7},     {IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1},
      {IPPROTO_TCP, TCP_SAVE_SYN, 1},         {IPPROTO_TCP, TCP_INQ, 1},
      {SOL_SOCKET, SO_ZEROCOPY, 1},           {SOL_SOCKET, SO_MAX_PACING_RATE, 1 << 20}};
  const std::vector<Option> udp{{IPPROTO_UDP, UDP_SEGMENT, 1200}, {IPPROTO_UDP, UDP_GRO, 1}};
  const std::vector<Option> multicast{{IPPROTO_IP, IP_MULTICAST_TTL, 9},
                                      {IPPROTO_IP, IP_MULTICAST_LOOP, 0},
                                      {SOL_SOCKET, SO_PEEK_OFF, 0}};
  const std::vector<Option> multicast6{{IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 9},
                                       {IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 0},
                                       {IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0},
                                       {IPPROTO_UDP, UDP_NO_CHECK6_TX, 1},
                                       {IPPROTO_UDP, UDP_NO_CHECK6_RX, 1}};
  const auto together = [](const std::vector<std::vector<Option>>& parts) {
    std::vector<Option> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  return {{"Tcp", AF_INET, SOCK_STREAM, together({ip, tcp})},
          {"Tcp6", AF_INET6, SOCK_STREAM, together({ip, ipv6, tcp})},
          {"Udp", AF_INET, SOCK_DGRAM,
           together({ip, udp, multicast, {{IPPROTO_IP, IP_MULTICAST_ALL, 0}}})},
          {"Udp6", AF_INET6, SOCK_DGRAM, together({ip, ipv6, udp, multicast, multicast6})},
          {"Unix",
           AF_UNIX,
           SOCK_STREAM,
           {{SOL_SOCKET, SO_TIMESTAMP, 1},
            {SOL_SOCKET, kSoPassPidfd, 1},
            {SOL_SOCKET, SO_PEEK_OFF, 0}}}};
}

int value_of(const UniqueFd& socket, const Option& option) {
  int value = -1;
  socklen_t length = sizeof(value);
  EXPECT_EQ(::getsockopt(socket.get(), option.level, option.name, &value, &length), 0);
  return value;
}

void choose(const UniqueFd& socket, const std::string& congestion) {
  ASSERT_EQ(::setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, congestion.data(),
                         static_cast<socklen_t>(congestion.size())),
            0);
}

std::string congestion_of(const UniqueFd& socket) {
  char name[16] = "";
  socklen_t length = sizeof(name);
  EXPECT_EQ(::getsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
  return name;
}

/// What is read from one socket of the test.
SocketOptions read(const UniqueFd& socket) {
  const auto all = read_socket_options({::getpid()});
  EXPECT_TRUE(all) << all.error().message();
  SocketOptions its;
  for (const proto::SocketOption& option : all->front()) {
    if (option.number() == socket.get()) *its.Add() = option;
  }
  return its;
}

Result<std::vector<std::string>> apply(SocketOptions options, const UniqueFd& socket) {
  for (proto::SocketOption& option : options) option.set_number(socket.get());
  return apply_socket_options({{::getpid(), options}});
}

proto::SocketOption make(const std::string& option, int value, const std::string& name = "") {
  proto::SocketOption made;
  made.set_option(option);
  made.set_value(value);
  made.set_name(name);
  return made;
}

SocketOptions only(const proto::SocketOption& option) {
  SocketOptions options;
  *options.Add() = option;
  return options;
}

class OptionsOf : public testing::TestWithParam<Kind> {};

TEST_P(OptionsOf, SurviveAMoveToANewSocket) {
  const UniqueFd old = GetParam().make();
  EXPECT_THAT(read(old), IsEmpty());
  for (const Option& option : GetParam().options) {
    ASSERT_EQ(
        ::setsockopt(old.get(), option.level, option.name, &option.value, sizeof(option.value)), 0)
        << option.level << " " << option.name;
  }
  const SocketOptions options = read(old);
  EXPECT_EQ(static_cast<std::size_t>(options.size()), GetParam().options.size());
  const UniqueFd fresh = GetParam().make();
  const auto refused = apply(options, fresh);
  ASSERT_TRUE(refused) << refused.error().message();
  EXPECT_THAT(*refused, IsEmpty());
  for (const Option& option : GetParam().options) {
    EXPECT_EQ(value_of(fresh, option), value_of(old, option)) << option.level << " " << option.name;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryKind, OptionsOf, testing::ValuesIn(kinds()),
                         [](const auto& test) { return test.param.name; });

class SocketOption : public testing::Test {
 protected:
  static UniqueFd tcp() { return UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }
};

TEST_F(SocketOption, ChoiceOfCongestionControlSurvives) {
  const UniqueFd old = tcp();
  const UniqueFd fresh = tcp();
  const std::string chosen = congestion_of(fresh) == "reno" ? "cubic" : "reno";
  choose(old, chosen);
  EXPECT_TRUE(apply(read(old), fresh));
  EXPECT_EQ(congestion_of(fresh), chosen);
}

TEST_F(SocketOption, ValueThatThisHostRefusesIsOneNote) {
  const UniqueFd sockets[] = {tcp(), tcp()};
  SocketOptions options;
  for (const UniqueFd& socket : sockets) {
    *options.Add() = make("tcp-congestion", 0, "nonesuch");
    options[options.size() - 1].set_number(socket.get());
    *options.Add() = make("tcp-user-timeout", 1000);
    options[options.size() - 1].set_number(socket.get());
  }
  const auto refused = apply_socket_options({{::getpid(), options}});
  ASSERT_TRUE(refused) << refused.error().message();
  EXPECT_THAT(*refused,
              ElementsAre(HasSubstr("2 sockets cannot have tcp-congestion nonesuch here: ")));
  for (const UniqueFd& socket : sockets) {
    EXPECT_EQ(value_of(socket, {IPPROTO_TCP, TCP_USER_TIMEOUT, 0}), 1000);
  }
}

TEST_F(SocketOption, DescriptorOfNoSocketIsANote) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const auto refused = apply(only(make("tcp-user-timeout", 1)), reading);
  ASSERT_TRUE(refused) << refused.error().message();
  EXPECT_THAT(*refused, ElementsAre(HasSubstr("a socket cannot have tcp-user-timeout 1 here")));
  const UniqueFd closed = std::move(writing);
  proto::SocketOption nowhere = make("tcp-user-timeout", 1);
  nowhere.set_number(1'000'000);
  EXPECT_TRUE(apply_socket_options({{::getpid(), only(nowhere)}}));
}

TEST_F(SocketOption, UnknownOneIsAnErrorOfTheProtocol) {
  const UniqueFd socket = tcp();
  for (const proto::SocketOption& wrong :
       {make("tcp-md5", 1), make("", 0), make("tcp-congestion", 1),
        make("tcp-congestion", 0, "sixteen-letters-"), make("tcp-user-timeout", 1, "reno")}) {
    const auto refused = apply(only(wrong), socket);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kProtocol) << wrong.DebugString();
  }
}

TEST_F(SocketOption, IsSetWithoutTheRightsOfTheAgent) {
  const Option restricted{SOL_SOCKET, SO_PREFER_BUSY_POLL, 1};
  const UniqueFd socket = tcp();
  const auto refused = apply(only(make("prefer-busy-poll", restricted.value)), socket);
  ASSERT_TRUE(refused) << refused.error().message();
  EXPECT_THAT(*refused, ElementsAre(HasSubstr("prefer-busy-poll 1 here: Operation not permitted")));
  EXPECT_EQ(value_of(socket, restricted), 0);
  // The caller keeps them.
  EXPECT_EQ(::setsockopt(socket.get(), restricted.level, restricted.name, &restricted.value,
                         sizeof(restricted.value)),
            0)
      << "the test needs CAP_NET_ADMIN";
}

}  // namespace
}  // namespace gcr::criu
