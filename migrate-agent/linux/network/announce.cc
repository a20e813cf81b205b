#include "migrate-agent/linux/network/announce.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <net/if.h>
#include <netinet/icmp6.h>
#include <netinet/if_ether.h>
#include <netinet/in.h>
#include <netinet/ip6.h>
#include <netpacket/packet.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <initializer_list>
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

Status send_arp(int socket, const sockaddr_ll& to, const ether_arp& packet) {
  const auto sent = ::sendto(socket, &packet, sizeof(packet), 0,
                             reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  return sent == sizeof(packet) ? Status() : cannot("send a packet of ARP");
}

/// As a request and as a reply: neighbours that ignore one of them take the other.
Status announce_v4(const Port& port, in_addr address) {
  const sockaddr_ll to = broadcast_on(port.number);
  const int socket = port.socket.get();
  GCR_TRY(send_arp(socket, to, arp(ARPOP_REQUEST, port.own, address, address)));
  return send_arp(socket, to, arp(ARPOP_REPLY, port.own, address, address));
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

using Packet = std::span<const std::byte>;

/// Asks who has an address, and reads answers.
struct Question {
  UniqueFd socket;
  std::function<Status()> ask;
  /// The hardware address in an answer; none if it is no answer about the address.
  std::function<std::optional<std::string>(Packet)> owner_in;
};

template <class T>
std::optional<T> head_of(Packet packet) {
  T head{};
  if (packet.size() < sizeof(head)) return std::nullopt;
  std::memcpy(&head, packet.data(), sizeof(head));
  return head;
}

Result<Question> ask_by_arp(const std::string& interface, in_addr address) {
  GCR_ASSIGN(Port port, open_port(interface));
  const int socket = port.socket.get();
  const sockaddr_ll to = broadcast_on(port.number);
  const ether_arp asked = arp(ARPOP_REQUEST, port.own, in_addr{}, address);
  return Question{std::move(port.socket), [=] { return send_arp(socket, to, asked); },
                  [address](Packet packet) -> std::optional<std::string> {
                    const auto answer = head_of<ether_arp>(packet);
                    if (!answer || answer->ea_hdr.ar_op != htons(ARPOP_REPLY) ||
                        std::memcmp(answer->arp_spa, &address, sizeof(address)) != 0) {
                      return std::nullopt;
                    }
                    return std::string(reinterpret_cast<const char*>(answer->arp_sha), ETH_ALEN);
                  }};
}

/// A neighbour solicitation without a sender, as for the detection of duplicates.
struct Solicitation {
  ip6_hdr ip{};
  nd_neighbor_solicit body{};

  explicit Solicitation(const in6_addr& target) {
    ip.ip6_flow = htonl(6u << 28);
    ip.ip6_plen = htons(sizeof(body));
    ip.ip6_nxt = IPPROTO_ICMPV6;
    ip.ip6_hlim = kWholeLink;
    ::inet_pton(AF_INET6, "ff02::1:ff00:0", &ip.ip6_dst);
    std::copy_n(&target.s6_addr[kSolicitedAt], kSolicitedBytes, &ip.ip6_dst.s6_addr[kSolicitedAt]);
    body.nd_ns_type = ND_NEIGHBOR_SOLICIT;
    body.nd_ns_target = target;
    body.nd_ns_cksum = checksum();
  }

  /// The last bytes of the address that is asked for, to which its owner listens.
  static constexpr std::size_t kSolicitedAt = 13;
  static constexpr std::size_t kSolicitedBytes = 3;

 private:
  /// Of RFC 4443, 2.3, over both addresses, the length, the protocol and the body.
  std::uint16_t checksum() const {
    std::array<std::uint16_t, (2 * sizeof(in6_addr) + sizeof(body)) / 2> words{};
    std::memcpy(words.data(), &ip.ip6_src, 2 * sizeof(in6_addr));
    std::memcpy(&words[sizeof(in6_addr)], &body, sizeof(body));
    std::uint32_t sum = htons(sizeof(body)) + htons(IPPROTO_ICMPV6);
    for (const std::uint16_t word : words) sum += word;
    while (sum > UINT16_MAX) sum = (sum & UINT16_MAX) + (sum >> 16);
    return static_cast<std::uint16_t>(~sum);
  }
};

/// The answer of an owner: to all nodes, with its hardware address.
struct Advertisement {
  ip6_hdr ip;
  nd_neighbor_advert body;
  nd_opt_hdr option;
  Hardware owner;
};

Result<Question> ask_by_discovery(const std::string& interface, const in6_addr& address) {
  const unsigned number = ::if_nametoindex(interface.c_str());
  if (number == 0) return cannot("find the interface " + interface);
  Question question;
  question.socket = UniqueFd(::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_IPV6)));
  if (!question.socket) return cannot("open a packet socket");
  const auto group_of = [&](std::initializer_list<std::uint8_t> last) {
    sockaddr_ll to = broadcast_on(static_cast<int>(number));
    to.sll_protocol = htons(ETH_P_IPV6);
    to.sll_addr[0] = to.sll_addr[1] = 0x33;  // RFC 2464, 7
    std::ranges::copy(last, &to.sll_addr[2]);
    return to;
  };
  const sockaddr_ll all = group_of({0, 0, 0, 1});
  packet_mreq wanted{};
  wanted.mr_ifindex = static_cast<int>(number);
  wanted.mr_type = PACKET_MR_MULTICAST;
  wanted.mr_alen = ETH_ALEN;
  std::copy_n(all.sll_addr, ETH_ALEN, wanted.mr_address);
  if (::bind(question.socket.get(), reinterpret_cast<const sockaddr*>(&all), sizeof(all)) != 0 ||
      ::setsockopt(question.socket.get(), SOL_PACKET, PACKET_ADD_MEMBERSHIP, &wanted,
                   sizeof(wanted)) != 0) {
    return cannot("receive on " + interface);
  }
  const std::uint8_t* const last = &address.s6_addr[Solicitation::kSolicitedAt];
  question.ask = [socket = question.socket.get(), to = group_of({0xff, last[0], last[1], last[2]}),
                  asked = Solicitation(address)]() -> Status {
    const auto sent = ::sendto(socket, &asked, sizeof(asked), 0,
                               reinterpret_cast<const sockaddr*>(&to), sizeof(to));
    return sent == sizeof(asked) ? Status() : cannot("send a neighbour solicitation");
  };
  question.owner_in = [address](Packet packet) -> std::optional<std::string> {
    const auto answer = head_of<Advertisement>(packet);
    if (!answer || answer->ip.ip6_nxt != IPPROTO_ICMPV6 ||
        answer->body.nd_na_type != ND_NEIGHBOR_ADVERT ||
        answer->option.nd_opt_type != ND_OPT_TARGET_LINKADDR ||
        !IN6_ARE_ADDR_EQUAL(&answer->body.nd_na_target, &address)) {
      return std::nullopt;
    }
    return std::string(answer->owner.begin(), answer->owner.end());
  };
  return question;
}

Result<Question> question_about(const std::string& interface, const std::string& address) {
  in_addr v4{};
  if (::inet_pton(AF_INET, address.c_str(), &v4) == 1) return ask_by_arp(interface, v4);
  in6_addr v6{};
  if (::inet_pton(AF_INET6, address.c_str(), &v6) == 1) return ask_by_discovery(interface, v6);
  return Error(Code::kInvalidArgument, address + " is no address");
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
      } else if (::inet_pton(AF_INET6, address.c_str(), &v6) == 1 && !is_link_local(address)) {
        GCR_TRY(announce_v6(port, v6));
      }
    }
  }
  return {};
}

Result<std::set<std::string>> who_has(const std::string& interface, const std::string& address,
                                      std::chrono::milliseconds patience) {
  GCR_ASSIGN(const Question question, question_about(interface, address));
  std::set<std::string> owners;
  auto asked = Clock::time_point();
  for (auto end = Clock::now() + patience; Clock::now() < end;) {
    if (owners.empty() && Clock::now() - asked >= kQuestionPause) {
      GCR_TRY(question.ask());
      asked = Clock::now();
    }
    const auto until =
        (owners.empty() ? std::min(end, asked + kQuestionPause) : end) - Clock::now();
    pollfd ready{question.socket.get(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until);
    if (::poll(&ready, 1, std::max(0, static_cast<int>(left.count()))) <= 0) continue;
    std::array<std::byte, 128> packet{};
    const auto size = ::recv(question.socket.get(), packet.data(), packet.size(), MSG_DONTWAIT);
    if (size <= 0) continue;
    const auto owner = question.owner_in(Packet(packet).first(static_cast<std::size_t>(size)));
    if (owner && owners.insert(*owner).second && owners.size() == 1) {
      end = std::min(end, Clock::now() + kSecondAnswer);
    }
  }
  return owners;
}

}  // namespace gcr::network
