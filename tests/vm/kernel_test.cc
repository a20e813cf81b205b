// The kernel of scripts/guest has the features that tests need and other kernels may lack: each is
// used.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "src/base/pagemap_scan.h"
#include "src/base/unique_fd.h"

namespace gcr {
namespace {

testing::AssertionResult runs(const std::string& command) {
  const int status = std::system(command.c_str());
  if (status == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << command << ": status " << status;
}

sockaddr_in ipv4(const char* address, std::uint16_t port) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = htons(port);
  ::inet_pton(AF_INET, address, &result.sin_addr);
  return result;
}

const sockaddr* generic(const sockaddr_in& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

/// The hardware clock, which the emulating machine drives. Seconds.
long hardware_clock() {
  long seconds = 0;
  std::ifstream("/sys/class/rtc/rtc0/since_epoch") >> seconds;
  return seconds;
}

/// The time at which the hardware clock's second changes.
std::chrono::steady_clock::time_point next_second() {
  for (const long now = hardware_clock(); hardware_clock() == now;) ::usleep(1000);
  return std::chrono::steady_clock::now();
}

/// On a busy host the kernel may have measured the processor's counter wrongly, by a multiple:
/// every timeout would be too short then.
TEST(Kernel, UsesTheHardwareClock) {
  ASSERT_NE(hardware_clock(), 0) << "it cannot be read";
  const auto start = next_second();
  const long first = hardware_clock();
  while (hardware_clock() < first + 5) ::usleep(10'000);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const auto shown = static_cast<double>(hardware_clock() - first);
  EXPECT_GT(took.count(), shown * 0.7);
  EXPECT_LT(took.count(), (shown + 1) * 1.3);
}

/// So that the other way to find pages is tested (PageScan::find_present()).
TEST(Kernel, HasNoScanOfPages) {
  const UniqueFd pages(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(pages);
  pagemap::ScanArguments arguments{};
  EXPECT_EQ(::ioctl(pages.get(), pagemap::kScan, &arguments), -1);
  EXPECT_EQ(errno, ENOTTY);
}

TEST(Kernel, HasHugepages) {
  constexpr std::size_t kBytes = 4 << 20;
  void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_POPULATE, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED) << std::strerror(errno);
  std::memset(mapped, 1, kBytes);
  ::munmap(mapped, kBytes);
}

/// Two network namespaces joined by a veth pair.
class Network : public testing::Test {
 protected:
  static constexpr char kNearAddress[] = "10.99.0.1";
  static constexpr char kFarAddress[] = "10.99.0.2";

  void SetUp() override {
    ASSERT_TRUE(runs("ip netns add near && ip netns add far"));
    ASSERT_TRUE(runs("ip link add veth0 netns near type veth peer name veth0 netns far"));
    ASSERT_TRUE(runs("ip -n near addr add 10.99.0.1/24 dev veth0 && ip -n near link set veth0 up"));
    ASSERT_TRUE(runs("ip -n far addr add 10.99.0.2/24 dev veth0 && ip -n far link set veth0 up"));
  }
  void TearDown() override { EXPECT_TRUE(runs("ip netns del near; ip netns del far")); }

  /// A UDP socket of a namespace, bound to an address of it.
  static UniqueFd socket_in(const std::string& network, const char* address) {
    UniqueFd socket;
    std::thread([&] {  // a separate thread: a namespace belongs to a thread
      const UniqueFd there(::open(("/run/netns/" + network).c_str(), O_RDONLY | O_CLOEXEC));
      if (::setns(there.get(), CLONE_NEWNET) != 0) return;
      socket.reset(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      const sockaddr_in name = ipv4(address, kPort);
      if (::bind(socket.get(), generic(name), sizeof(name)) != 0) socket.reset();
    })
        .join();
    return socket;
  }

  /// Sends a packet from near to far; returns how long it took.
  static std::chrono::nanoseconds packet_time() {
    const UniqueFd near = socket_in("near", kNearAddress);
    const UniqueFd far = socket_in("far", kFarAddress);
    const timeval patience{20, 0};
    ::setsockopt(far.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    const sockaddr_in to = ipv4(kFarAddress, kPort);
    const auto start = std::chrono::steady_clock::now();
    char byte = 'x';
    EXPECT_EQ(::sendto(near.get(), &byte, 1, 0, generic(to), sizeof(to)), 1);
    EXPECT_EQ(::recv(far.get(), &byte, 1, 0), 1);
    return std::chrono::steady_clock::now() - start;
  }

 private:
  static constexpr std::uint16_t kPort = 4000;
};

TEST_F(Network, VethCarriesPackets) { packet_time(); }

TEST_F(Network, NetemDelaysPackets) {
  ASSERT_TRUE(runs("tc -n near qdisc add dev veth0 root netem delay 700ms"));
  EXPECT_GE(packet_time(), std::chrono::milliseconds(700));
}

TEST_F(Network, RateIsLimited) {
  EXPECT_TRUE(runs("tc -n near qdisc add dev veth0 root tbf rate 1mbit burst 2kb latency 1s"));
  EXPECT_TRUE(runs("tc -n far qdisc add dev veth0 root handle 1: htb default 1"));
  packet_time();
}

/// Two ends of a TCP connection over the loopback device.
struct Connection {
  UniqueFd client;
  UniqueFd server;

  Connection() {
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = ipv4("127.0.0.1", 0);
    socklen_t length = sizeof(address);
    if (::bind(listener.get(), generic(address), length) != 0 || ::listen(listener.get(), 1) != 0 ||
        ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      return;
    }
    client.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(client.get(), generic(address), length) != 0) client.reset();
    server.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
};

TEST(Kernel, EncryptsTlsRecords) {
  const Connection connection;
  tls12_crypto_info_aes_gcm_128 keys{};
  keys.info.version = TLS_1_3_VERSION;
  keys.info.cipher_type = TLS_CIPHER_AES_GCM_128;
  std::memset(keys.key, 7, sizeof(keys.key));
  for (const UniqueFd* end : {&connection.client, &connection.server}) {
    ASSERT_EQ(::setsockopt(end->get(), IPPROTO_TCP, TCP_ULP, "tls", sizeof("tls")), 0)
        << std::strerror(errno);
  }
  ASSERT_EQ(::setsockopt(connection.client.get(), SOL_TLS, TLS_TX, &keys, sizeof(keys)), 0)
      << std::strerror(errno);
  const std::string sent = "through the kernel";
  ASSERT_EQ(::send(connection.client.get(), sent.data(), sent.size(), 0),
            static_cast<ssize_t>(sent.size()));
  ASSERT_EQ(::setsockopt(connection.server.get(), SOL_TLS, TLS_RX, &keys, sizeof(keys)), 0)
      << std::strerror(errno);
  char received[64];
  const ssize_t length = ::recv(connection.server.get(), received, sizeof(received), 0);
  ASSERT_GT(length, 0) << std::strerror(errno);
  EXPECT_EQ(std::string(received, static_cast<std::size_t>(length)), sent);
}

TEST(Kernel, HasSoftwareRdma) {
  ASSERT_TRUE(runs("ip link add rdma0 type veth peer name rdma1"));
  ASSERT_TRUE(runs("ip link set rdma0 up && ip link set rdma1 up"));
  ASSERT_TRUE(runs("rdma link add rxe0 type rxe netdev rdma0"));
  std::string state;
  std::getline(std::ifstream("/sys/class/infiniband/rxe0/ports/1/state"), state);
  EXPECT_NE(state.find("ACTIVE"), std::string::npos) << state;
  EXPECT_EQ(::access("/dev/infiniband/uverbs0", R_OK | W_OK), 0);
  EXPECT_TRUE(runs("rdma link delete rxe0 && ip link delete rdma0"));
}

}  // namespace
}  // namespace gcr
