// Interfaces of three network namespaces on one switch, as of two containers and a neighbour.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>

#include <cstdlib>
#include <functional>
#include <thread>

#include "migrate-agent/linux/network/announce.h"
#include "migrate-agent/linux/network/interfaces.h"
#include "src/base/unique_fd.h"

namespace gcr::network {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using namespace std::chrono_literals;

constexpr char kMoving[] = "10.1.0.5";
constexpr char kMovingV6[] = "fd01::5";

/// A network namespace, as long as it exists.
class Namespace {
 public:
  Namespace() {
    std::thread([this] {
      ASSERT_EQ(::unshare(CLONE_NEWNET), 0) << ::strerror(errno);
      fd_.reset(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
      ASSERT_EQ(std::system("ip link set lo up"), 0);
    }).join();
  }

  void inside(const std::function<void()>& work) const {
    std::thread([&] {
      ASSERT_EQ(::setns(fd_.get(), CLONE_NEWNET), 0);
      work();
    }).join();
  }

  void ip(const std::string& words) const {
    inside([&] { EXPECT_EQ(std::system(("ip " + words).c_str()), 0) << words; });
  }

  std::string path() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), fd_.get()); }

  proto::Network read() const {
    proto::Network network;
    inside([&] {
      auto found = read_interfaces();
      ASSERT_TRUE(found) << found.error().message();
      network = std::move(*found);
    });
    return network;
  }

  void succeed(const std::function<Status()>& work) const {
    inside([&] {
      const Status done = work();
      EXPECT_TRUE(done) << done.error().message();
    });
  }

  std::set<std::string> owners(const std::string& address,
                               std::chrono::milliseconds patience = 30s) const {
    std::set<std::string> owners;
    inside([&] {
      auto found = who_has("eth0", address, patience);
      ASSERT_TRUE(found) << found.error().message();
      owners = std::move(*found);
    });
    return owners;
  }

 private:
  UniqueFd fd_;
};

std::vector<std::string> addresses(const proto::Network& network, int interface = 0) {
  std::vector<std::string> found;
  for (const auto& each : network.interfaces(interface).addresses()) {
    if (!each.address().starts_with("fe80:")) found.push_back(each.address());
  }
  std::ranges::sort(found);
  return found;
}

std::vector<std::string> routes(const proto::Network& network) {
  std::vector<std::string> found;
  for (const auto& each : network.interfaces(0).routes()) {
    found.push_back(fmt::format("{} via {} from {} at {}", each.target(), each.gateway(),
                                each.source(), each.priority()));
  }
  std::ranges::sort(found);
  return found;
}

class NetworkTest : public testing::Test {
 protected:
  void SetUp() override {
    switch_.ip("link add switch0 type bridge");
    switch_.ip("link set switch0 up");
    int number = 0;
    for (const Namespace* each : {&source_, &destination_, &neighbour_}) {
      switch_.ip(fmt::format("link add port{0} type veth peer name peer{0}", number));
      switch_.inside([&] {
        // `ip` accepts names and PIDs alone.
        EXPECT_EQ(
            std::system(fmt::format("mkdir -p /run/netns && : >/run/netns/gcr-test-{0} && "
                                    "mount --bind {1} /run/netns/gcr-test-{0} && "
                                    "ip link set peer{2} name eth0 netns gcr-test-{0}; "
                                    "umount /run/netns/gcr-test-{0}; rm /run/netns/gcr-test-{0}",
                                    ::getpid(), each->path(), number)
                            .c_str()),
            0);
      });
      switch_.ip(fmt::format("link set port{} master switch0 up", number++));
      each->ip("link set eth0 up");
    }
    source_.ip(fmt::format("addr add {}/24 dev eth0", kMoving));
    source_.ip(fmt::format("addr add {}/64 dev eth0 nodad", kMovingV6));
    source_.ip("route add default via 10.1.0.1 src 10.1.0.5 metric 7");
    source_.ip("route add 10.9.0.0/16 dev eth0");
    source_.ip("-6 route add default via fd01::1");
    destination_.ip("addr add 10.1.0.9/24 dev eth0");
    destination_.ip("addr add fd01::9/64 dev eth0 nodad");
    destination_.ip("route add default via 10.1.0.2 src 10.1.0.9");
    neighbour_.ip("addr add 10.1.0.3/24 dev eth0");
  }

  void rename_at_destination() {
    destination_.ip("link set eth0 down");
    destination_.ip("link set eth0 name eth1");
    destination_.ip("link set eth1 up");
  }

  std::string hardware(const Namespace& of) { return of.read().interfaces(0).hardware_address(); }

  Namespace switch_, source_, destination_, neighbour_;
};

TEST_F(NetworkTest, InterfaceThatWasDownIsAsBefore) {
  const proto::Network before = source_.read();
  ASSERT_THAT(before.interfaces(), SizeIs(1));
  EXPECT_THAT(addresses(before), ElementsAre("10.1.0.5/24", "fd01::5/64"));
  EXPECT_THAT(routes(before),
              ElementsAre("10.9.0.0/16 via  from  at 0", "default via 10.1.0.1 from 10.1.0.5 at 7",
                          "default via fd01::1 from  at 1024"));
  EXPECT_THAT(neighbour_.owners(kMoving), ElementsAre(hardware(source_)));
  for (int i = 0; i < 2; ++i) source_.succeed([&] { return take_down(before); });
  EXPECT_THAT(source_.read().interfaces(), IsEmpty());
  EXPECT_THAT(neighbour_.owners(kMoving, 300ms), IsEmpty());
  for (int i = 0; i < 2; ++i) source_.succeed([&] { return bring_up(before); });
  const proto::Network after = source_.read();
  EXPECT_EQ(addresses(after), addresses(before));
  EXPECT_EQ(routes(after), routes(before));
  EXPECT_THAT(neighbour_.owners(kMoving), ElementsAre(hardware(source_)));
}

TEST_F(NetworkTest, AddressMovesAndNoHostAnswersInBetween) {
  const proto::Network coming = source_.read();
  const std::string hardware_of_source = hardware(source_);
  const auto planned = merge(coming, destination_.read());
  ASSERT_TRUE(planned) << planned.error().message();
  destination_.succeed([&] { return take_over(*planned); });
  EXPECT_THAT(neighbour_.owners(kMoving), ElementsAre(hardware_of_source));
  source_.succeed([&] { return take_down(coming); });
  EXPECT_THAT(neighbour_.owners(kMoving, 300ms), IsEmpty());
  for (int i = 0; i < 2; ++i) destination_.succeed([&] { return bring_up(*planned); });
  const proto::Network there = destination_.read();
  EXPECT_THAT(addresses(there), ElementsAre("10.1.0.5/24", "fd01::5/64"));
  EXPECT_THAT(routes(there), ElementsAre("default via 10.1.0.2 from  at 0"));
  EXPECT_EQ(there.interfaces(0).hardware_address(), hardware_of_source);
  EXPECT_THAT(neighbour_.owners(kMoving), ElementsAre(hardware_of_source));
  EXPECT_THAT(neighbour_.owners("10.1.0.9", 300ms), IsEmpty());
}

TEST_F(NetworkTest, InterfaceOfAnotherNameInTheSameSubnetsIsTaken) {
  rename_at_destination();
  destination_.ip("addr add fd01::9/64 dev eth1 nodad");  // removed with the state
  destination_.ip("link add eth0 type dummy || ip link add eth0 type veth peer name eth2");
  destination_.ip("link set eth0 up");
  destination_.ip("addr add 192.0.2.1/24 dev eth0");
  const proto::Network coming = source_.read();
  const auto planned = merge(coming, destination_.read());
  ASSERT_TRUE(planned) << planned.error().message();
  ASSERT_THAT(planned->interfaces(), SizeIs(1));
  EXPECT_EQ(planned->interfaces(0).name(), "eth1");
  EXPECT_EQ(planned->interfaces(0).hardware_address(), hardware(source_));
  EXPECT_THAT(addresses(*planned), ElementsAre("10.1.0.5/24", "fd01::5/64"));
  proto::Network twice = coming;
  *twice.add_interfaces() = coming.interfaces(0);
  twice.mutable_interfaces(1)->set_name("eth9");
  EXPECT_THAT(merge(twice, destination_.read()).error().message(), HasSubstr("no interface eth9"));
}

TEST_F(NetworkTest, InterfaceWithoutAddressesGetsRoutesToo) {
  destination_.ip("addr flush dev eth0");
  const proto::Network coming = source_.read();
  const auto planned = merge(coming, destination_.read());
  ASSERT_TRUE(planned) << planned.error().message();
  proto::Network twice = coming;
  *twice.add_interfaces() = coming.interfaces(0);
  EXPECT_THAT(merge(twice, destination_.read()).error().message(), HasSubstr("takes the place"));
  EXPECT_THAT(destination_.owners(kMoving), ElementsAre(hardware(source_)));
  destination_.succeed([&] { return take_over(*planned); });
  source_.succeed([&] { return take_down(coming); });
  destination_.succeed([&] { return bring_up(*planned); });
  EXPECT_EQ(addresses(destination_.read()), addresses(coming));
  EXPECT_EQ(routes(destination_.read()), routes(coming));
}

/// As CRIU does, which connects in repair mode.
TEST_F(NetworkTest, SocketsAreConnectedBeforeTheInterfaceIsUp) {
  const auto planned = merge(source_.read(), destination_.read());
  ASSERT_TRUE(planned) << planned.error().message();
  destination_.succeed([&] { return take_over(*planned); });
  destination_.inside([] {
    const auto connects = [](int family, const sockaddr* from, const sockaddr* to, socklen_t size) {
      const UniqueFd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const int on = 1;
      EXPECT_EQ(::setsockopt(socket.get(), IPPROTO_TCP, TCP_REPAIR, &on, sizeof(on)), 0);
      EXPECT_EQ(::bind(socket.get(), from, size), 0) << ::strerror(errno);
      EXPECT_EQ(::connect(socket.get(), to, size), 0) << ::strerror(errno);
    };
    sockaddr_in v4{.sin_family = AF_INET, .sin_port = htons(4000), .sin_addr = {}, .sin_zero = {}};
    ::inet_pton(AF_INET, kMoving, &v4.sin_addr);
    sockaddr_in far = v4;
    ::inet_pton(AF_INET, "192.0.2.1", &far.sin_addr);
    connects(AF_INET, reinterpret_cast<sockaddr*>(&v4), reinterpret_cast<sockaddr*>(&far),
             sizeof(v4));
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(4000);
    ::inet_pton(AF_INET6, kMovingV6, &v6.sin6_addr);
    sockaddr_in6 far_v6 = v6;
    ::inet_pton(AF_INET6, "2001:db8::1", &far_v6.sin6_addr);
    connects(AF_INET6, reinterpret_cast<sockaddr*>(&v6), reinterpret_cast<sockaddr*>(&far_v6),
             sizeof(v6));
  });
}

TEST_F(NetworkTest, EachOwnerOfAnAddressAnswers) {
  destination_.ip(fmt::format("addr add {}/24 dev eth0", kMoving));
  destination_.ip(fmt::format("addr add {}/64 dev eth0 nodad", kMovingV6));
  for (const char* address : {kMoving, kMovingV6}) {
    EXPECT_THAT(neighbour_.owners(address),
                testing::UnorderedElementsAre(hardware(source_), hardware(destination_)))
        << address;
  }
  for (const char* address : {"10.1.0.77", "fd01::77"}) {
    EXPECT_THAT(neighbour_.owners(address, 300ms), IsEmpty()) << address;
  }
}

TEST_F(NetworkTest, NeighboursLearnWhatIsAnnounced) {
  for (const auto& [family, address] : {std::pair("-4", kMoving), {"-6", kMovingV6}}) {
    neighbour_.ip("addr add fd01::3/64 dev eth0 nodad 2>/dev/null || true");
    neighbour_.ip(fmt::format("{} neigh replace {} lladdr 02:00:00:00:00:01 dev eth0 nud stale",
                              family, address));
  }
  source_.succeed([network = source_.read()] { return announce(network); });
  for (const char* address : {kMoving, kMovingV6}) {
    neighbour_.inside([&] {
      // What is sent on a veth has arrived when the call returns.
      const std::string asked =
          fmt::format("ip neigh show {} dev eth0 | grep -q 'lladdr 02:00:00:00:00:01'", address);
      EXPECT_NE(std::system(asked.c_str()), 0) << address;
    });
  }
}

TEST_F(NetworkTest, OtherNetworksAreRefused) {
  proto::Network coming = source_.read();
  coming.mutable_interfaces(0)->add_routes()->set_target(std::string(2000, '1'));
  EXPECT_THAT(merge(coming, destination_.read()).error().message(), HasSubstr("too many"));
  coming.mutable_interfaces(0)->mutable_routes()->RemoveLast();
  const auto complaint = [&] { return merge(coming, destination_.read()).error().message(); };
  destination_.ip("addr del 10.1.0.9/24 dev eth0");
  EXPECT_THAT(complaint(), HasSubstr("eth0 has no address in the subnet of 10.1.0.5/24"));
  destination_.ip("addr add 10.1.0.9/16 dev eth0");
  EXPECT_THAT(complaint(), HasSubstr("subnet"));
  rename_at_destination();
  EXPECT_THAT(complaint(), HasSubstr("no interface eth0"));
}

}  // namespace
}  // namespace gcr::network
