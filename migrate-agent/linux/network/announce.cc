#include "migrate-agent/linux/network/announce.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <net/if.h>
#include <netinet/icmp6.h>
#include <netinet/if_ether.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>

#include "migrate-agent/linux/network/interfaces.h"
#include "src/base/unique_fd.h"

namespace gcr::network {
namespace {

using Clock = std::chrono::steady_clock;

/// For a second answer, after the first.
constexpr std::chrono::milliseconds kSecondAnswer{50};
constexpr std::chrono::milliseconds kQuestionPause{200};
constexpr int kWholeLink = 255;  ///< hop limit of neighbour discovery

using Hardware = std::array<std::uint8_t, ETH_ALEN>;
constexpr Hardware kBroadcast{0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

/// Sends and receives on one interface.
struct Port {
  UniqueFd socket;
  int number = 0;
  Hardware own{};
};

Error cannot(const std::string& what) { return Error::from_errno(errno, "cannot " + what); }

sockaddr_ll broadcast_on(int interface) {
  sockaddr_ll to{};
  to.sll_family = AF_PACKET;
  to.sll_protocol = htons(ETH_P_ARP);
  to.sll_ifindex = interface;
  to.sll_halen = ETH_ALEN;
  std::ranges::copy(kBroadcast, to.sll_addr);
  return to;
}

/// For ARP.
Result<Port> open_port(const std::string& interface) {
  Port port{.socket = UniqueFd(::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_ARP)))};
  if (!port.socket) return cannot("open a packet socket");
  ifreq request{};
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  if (::ioctl(port.socket.get(), SIOCGIFINDEX, &request) != 0) {
    return cannot("find the interface " + interface);
  }
  port.number = request.ifr_ifindex;
  if (::ioctl(port.socket.get(), SIOCGIFHWADDR, &request) != 0) {
    return cannot("read the hardware address of " + interface);
  }
  std::memcpy(port.own.data(), request.ifr_hwaddr.sa_data, ETH_ALEN);
  const sockaddr_ll here = broadcast_on(port.number);
  if (::bind(port.socket.get(), reinterpret_cast<const sockaddr*>(&here), sizeof(here)) != 0) {
    return cannot("receive on " + interface);
  }
  return port;
}

ether_arp arp(std::uint16_t operation, const Hardware& sender, in_addr sender_address,
              in_addr target) {
  ether_arp packet{};
  packet.ea_hdr.ar_hrd = htons(ARPHRD_ETHER);
  packet.ea_hdr.ar_pro = htons(ETH_P_IP);
  packet.ea_hdr.ar_hln = ETH_ALEN;
  packet.ea_hdr.ar_pln = sizeof(in_addr);
  packet.ea_hdr.ar_op = htons(operation);
  std::ranges::copy(sender, packet.arp_sha);
  std::memcpy(packet.arp_spa, &sender_address, sizeof(sender_address));
  if (operation == ARPOP_REPLY) std::ranges::copy(kBroadcast, packet.arp_tha);
  std::memcpy(packet.arp_tpa, &target, sizeof(target));
  return packet;
}

Status send_arp(const Port& port, const ether_arp& packet) {
  const sockaddr_ll to = broadcast_on(port.number);
  const auto sent = ::sendto(port.socket.get(), &packet, sizeof(packet), 0,
                             reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  return sent == sizeof(packet) ? Status() : cannot("send a packet of ARP");
}

/// As a request and as a reply: neighbours that ignore one of them take the other.
Status announce_v4(const Port& port, in_addr address) {
  GCR_TRY(send_arp(port, arp(ARPOP_REQUEST, port.own, address, address)));
  return send_arp(port, arp(ARPOP_REPLY, port.own, address, address));
}

/// Unsolicited, to all nodes, overriding what they know.
Status announce_v6(const Port& port, const in6_addr& address) {
  struct {
    nd_neighbor_advert head;
    nd_opt_hdr option;
    Hardware own;
  } packet{};
  packet.head.nd_na_type = ND_NEIGHBOR_ADVERT;
  packet.head.nd_na_flags_reserved = ND_NA_FLAG_OVERRIDE;
  packet.head.nd_na_target = address;
  packet.option.nd_opt_type = ND_OPT_TARGET_LINKADDR;
  packet.option.nd_opt_len = 1;  // of 8 bytes
  packet.own = port.own;
  const UniqueFd socket(::socket(AF_INET6, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMPV6));
  if (!socket) return cannot("open a socket for ICMPv6");
  ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_MULTICAST_HOPS, &kWholeLink, sizeof(kWholeLink));
  sockaddr_in6 from{};
  from.sin6_family = AF_INET6;
  from.sin6_addr = address;
  from.sin6_scope_id = static_cast<std::uint32_t>(port.number);
  sockaddr_in6 to = from;
  ::inet_pton(AF_INET6, "ff02::1", &to.sin6_addr);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&from), sizeof(from)) == 0 &&
      ::sendto(socket.get(), &packet, sizeof(packet), 0, reinterpret_cast<const sockaddr*>(&to),
               sizeof(to)) == sizeof(packet)) {
    return {};
  }
  return cannot("send a neighbour advertisement");
}

/// Of an answer, who has the address; none if it is no answer about it.
std::optional<std::string> owner_in(const ether_arp& packet, in_addr address) {
  if (packet.ea_hdr.ar_op != htons(ARPOP_REPLY) ||
      std::memcmp(packet.arp_spa, &address, sizeof(address)) != 0) {
    return std::nullopt;
  }
  return std::string(reinterpret_cast<const char*>(packet.arp_sha), ETH_ALEN);
}

}  // namespace

Status announce(const proto::Network& network) {
  for (const proto::NetworkInterface& interface : network.interfaces()) {
    GCR_ASSIGN(const Port port, open_port(interface.name()));
    for (const proto::NetworkAddress& each : interface.addresses()) {
      const std::string address = plain(each);
      in_addr v4{};
      in6_addr v6{};
      if (::inet_pton(AF_INET, address.c_str(), &v4) == 1) {
        GCR_TRY(announce_v4(port, v4));
      } else if (::inet_pton(AF_INET6, address.c_str(), &v6) == 1 && !IN6_IS_ADDR_LINKLOCAL(&v6)) {
        GCR_TRY(announce_v6(port, v6));
      }
    }
  }
  return {};
}

Result<std::set<std::string>> who_has(const std::string& interface, const std::string& address,
                                      std::chrono::milliseconds patience) {
  in_addr wanted{};
  if (::inet_pton(AF_INET, address.c_str(), &wanted) != 1) {
    return Error(Code::kInvalidArgument, address + " is no IPv4 address");
  }
  GCR_ASSIGN(const Port port, open_port(interface));
  std::set<std::string> owners;
  auto asked = Clock::time_point();
  for (auto end = Clock::now() + patience; Clock::now() < end;) {
    if (owners.empty() && Clock::now() - asked >= kQuestionPause) {
      GCR_TRY(send_arp(port, arp(ARPOP_REQUEST, port.own, in_addr{}, wanted)));
      asked = Clock::now();
    }
    const auto until =
        (owners.empty() ? std::min(end, asked + kQuestionPause) : end) - Clock::now();
    pollfd ready{port.socket.get(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until);
    if (::poll(&ready, 1, std::max(0, static_cast<int>(left.count()))) <= 0) continue;
    ether_arp packet{};
    const auto size = ::recv(port.socket.get(), &packet, sizeof(packet), MSG_DONTWAIT);
    if (size < static_cast<ssize_t>(sizeof(packet))) continue;
    const auto owner = owner_in(packet, wanted);
    if (owner && owners.insert(*owner).second && owners.size() == 1) {
      end = std::min(end, Clock::now() + kSecondAnswer);
    }
  }
  return owners;
}

}  // namespace gcr::network
