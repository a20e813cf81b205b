#include "migrate-agent/process/inspect/sockets.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <linux/inet_diag.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netlink/attr.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <sstream>

#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/unique_fd.h"

namespace gcr::process {
namespace {

constexpr char kMapped[] = "::ffff:";

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  const in_addr& v4() const { return reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr; }
  const in6_addr& v6() const { return reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr; }
};

/// Family 0 if it is no address in numbers.
SocketAddress parse(const std::string& address, std::uint16_t port = 0) {
  SocketAddress parsed;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&parsed.storage);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&parsed.storage);
  if (::inet_pton(AF_INET, address.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    parsed.length = sizeof(*v4);
  } else if (::inet_pton(AF_INET6, address.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    parsed.length = sizeof(*v6);
  }
  return parsed;
}

/// In numbers.
std::set<std::string> own_addresses() {
  std::set<std::string> addresses;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return addresses;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> interfaces(list, &::freeifaddrs);
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr) continue;
    const int family = at->ifa_addr->sa_family;
    const void* number = nullptr;
    if (family == AF_INET) {
      number = &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr;
    } else if (family == AF_INET6) {
      number = &reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr;
    }
    if (number != nullptr) addresses.insert(address_text(family, number));
  }
  return addresses;
}

/// Means the same on every host.
bool is_everywhere(const SocketAddress& address) {
  if (address.family() == AF_INET) {
    const std::uint32_t number = ntohl(address.v4().s_addr);
    return number == INADDR_ANY || number == INADDR_BROADCAST || IN_MULTICAST(number) ||
           number >> 24 == IN_LOOPBACKNET;
  }
  const in6_addr& number = address.v6();
  return IN6_IS_ADDR_UNSPECIFIED(&number) || IN6_IS_ADDR_LOOPBACK(&number) ||
         IN6_IS_ADDR_MULTICAST(&number);
}

bool is_link_local(const SocketAddress& address) {
  if (address.family() == AF_INET) return ntohl(address.v4().s_addr) >> 16 == 0xa9fe;
  return IN6_IS_ADDR_LINKLOCAL(&address.v6());
}

struct FreeSocket {
  void operator()(nl_sock* socket) const { ::nl_socket_free(socket); }
};

using Peers = std::map<std::uint64_t, std::uint64_t>;

/// Adds one answer to the Peers.
int add_peer(nl_msg* message, void* peers) {
  nlmsghdr* const header = ::nlmsg_hdr(message);
  if (::nlmsg_valid_hdr(header, sizeof(unix_diag_msg)) == 0) return NL_SKIP;
  const auto* const body = static_cast<const unix_diag_msg*>(::nlmsg_data(header));
  const nlattr* const peer = ::nlmsg_find_attr(header, sizeof(*body), UNIX_DIAG_PEER);
  if (peer == nullptr || ::nla_len(peer) < static_cast<int>(sizeof(std::uint32_t))) return NL_SKIP;
  const std::uint32_t inode = ::nla_get_u32(peer);
  if (inode != 0) (*static_cast<Peers*>(peers))[body->udiag_ino] = inode;
  return NL_OK;
}

/// "0100007F" -> "127.0.0.1": words of 32 bits in the host's order, one or four of them. Empty if
/// it is neither.
std::string address_in_numbers(const std::string& digits) {
  if (digits.size() != 8 && digits.size() != 32) return {};
  std::array<std::uint32_t, 4> words{};
  for (std::size_t i = 0; i < digits.size() / 8; ++i) {
    if (!(std::istringstream(digits.substr(i * 8, 8)) >> std::hex >> words[i])) return {};
  }
  return address_text(digits.size() == 8 ? AF_INET : AF_INET6, words.data());
}

/// "0100007F:0050" -> address and port; false if it is not such a word.
bool read_end(const std::string& word, std::string& address, std::uint16_t& port) {
  const std::size_t colon = word.find(':');
  if (colon == std::string::npos) return false;
  address = address_in_numbers(word.substr(0, colon));
  unsigned number = 0;
  if (!(std::istringstream(word.substr(colon + 1)) >> std::hex >> number)) return false;
  port = static_cast<std::uint16_t>(number);
  return !address.empty();
}

/// One line of /proc/net/tcp and the like; none if it is no such line.
std::optional<InternetSocket> parse_socket(const std::string& protocol, const std::string& line) {
  // sl local remote state queues timer retransmits uid timeout inode
  std::istringstream fields(line);
  const std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};
  if (words.size() < 10) return std::nullopt;
  InternetSocket socket{};
  socket.protocol = protocol;
  unsigned state = 0;
  const std::size_t colon = words[4].find(':');
  if (!read_end(words[1], socket.address, socket.port) ||
      !read_end(words[2], socket.remote_address, socket.remote_port) ||
      !(std::istringstream(words[3]) >> std::hex >> state) || colon == std::string::npos ||
      !(std::istringstream(words[9]) >> socket.inode)) {
    return std::nullopt;
  }
  const bool tcp = protocol == "tcp";
  // A socket that waits for late packets belongs to no process, and hinders none.
  socket.connection = tcp && state != TCP_LISTEN && state != TCP_CLOSE && state != TCP_TIME_WAIT;
  const bool ends = state == TCP_FIN_WAIT1 || state == TCP_CLOSING || state == TCP_LAST_ACK;
  socket.passing = tcp && socket.inode == 0 && (state == TCP_SYN_RECV || ends);
  if (tcp && state == TCP_LISTEN) {
    std::istringstream(words[4].substr(colon + 1)) >> std::hex >> socket.waiting;
  }
  return socket;
}

/// False if there is nothing left over, or something else has the port too.
bool forget_left_over(std::uint16_t port) {
  std::vector<InternetSocket> sockets = internet_sockets();
  std::erase_if(sockets, [port](const InternetSocket& one) {
    return one.protocol != "tcp" || one.port != port;
  });
  if (sockets.empty() || !std::ranges::all_of(sockets, &InternetSocket::is_left_over)) return false;
  std::ranges::for_each(sockets, forget);
  return true;
}

}  // namespace

std::string unmapped(const std::string& address) {
  const bool mapped = address.starts_with(kMapped) && address.find('.') != std::string::npos;
  return mapped ? address.substr(std::strlen(kMapped)) : address;
}

std::string first_address() {
  std::string first;
  for (const std::string& address : own_addresses()) {
    const SocketAddress parsed = parse(address);
    if (is_everywhere(parsed) || is_link_local(parsed)) continue;
    if (parsed.family() == AF_INET) return address;
    if (first.empty()) first = address;
  }
  return first;
}

std::string address_text(int family, const void* number) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (::inet_ntop(family, number, text.data(), text.size()) == nullptr) return {};
  return unmapped(text.data());
}

std::string end_text(const std::string& address, std::uint16_t port) {
  const bool v6 = address.find(':') != std::string::npos;
  return (v6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

Addresses::Addresses(const std::string& reached)
    : reached_(unmapped(reached)), own_(own_addresses()) {}

std::optional<std::string> Addresses::here(const std::string& address) const {
  const std::string plain = unmapped(address);
  const SocketAddress parsed = parse(plain);
  if (parsed.family() == 0) return std::nullopt;
  if (is_everywhere(parsed) || own_.contains(plain)) return plain;
  if (is_link_local(parsed) || parse(reached_).family() != parsed.family()) return std::nullopt;
  return reached_;
}

std::string InternetSocket::local_name() const { return end_text(address, port); }
std::string InternetSocket::remote_name() const { return end_text(remote_address, remote_port); }

Result<std::map<std::uint64_t, std::uint64_t>> unix_peers() {
  const std::unique_ptr<nl_sock, FreeSocket> socket(::nl_socket_alloc());
  Peers peers;
  unix_diag_req request{};
  request.sdiag_family = AF_UNIX;
  request.udiag_states = ~0u;
  request.udiag_show = UDIAG_SHOW_PEER;
  int error = socket == nullptr ? -NLE_NOMEM : ::nl_connect(socket.get(), NETLINK_SOCK_DIAG);
  if (error >= 0) {
    ::nl_socket_modify_cb(socket.get(), NL_CB_VALID, NL_CB_CUSTOM, add_peer, &peers);
    error =
        ::nl_send_simple(socket.get(), SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, &request, sizeof(request));
  }
  if (error >= 0) error = ::nl_recvmsgs_default(socket.get());
  if (error < 0) {
    return Error(Code::kUnsupported, std::string("the kernel does not tell about Unix sockets: ") +
                                         ::nl_geterror(error));
  }
  return peers;
}

void forget(const InternetSocket& left_over) {
  const bool v6 = left_over.address.find(':') != std::string::npos;
  inet_diag_req_v2 request{};
  request.sdiag_family = v6 ? AF_INET6 : AF_INET;
  request.sdiag_protocol = IPPROTO_TCP;
  request.idiag_states = ~0u;
  request.id.idiag_sport = htons(left_over.port);
  request.id.idiag_dport = htons(left_over.remote_port);
  std::ranges::fill(request.id.idiag_cookie, INET_DIAG_NOCOOKIE);
  ::inet_pton(request.sdiag_family, left_over.address.c_str(), request.id.idiag_src);
  ::inet_pton(request.sdiag_family, left_over.remote_address.c_str(), request.id.idiag_dst);
  const std::unique_ptr<nl_sock, FreeSocket> socket(::nl_socket_alloc());
  if (socket == nullptr || ::nl_connect(socket.get(), NETLINK_SOCK_DIAG) < 0) return;
  if (::nl_send_simple(socket.get(), SOCK_DESTROY, NLM_F_ACK, &request, sizeof(request)) < 0)
    return;
  (void)::nl_wait_for_ack(socket.get());
}

std::vector<InternetSocket> internet_sockets(pid_t pid) {
  std::vector<InternetSocket> sockets;
  for (const char* name : {"tcp", "tcp6", "udp", "udp6"}) {
    const std::string task = pid == 0 ? "thread-self" : std::to_string(pid);
    std::istringstream file(procfs::read_own_proc(task + "/net/" + name));
    std::string line;
    std::getline(file, line);  // the heading
    while (std::getline(file, line)) {
      auto socket = parse_socket(std::string(name).substr(0, 3), line);
      if (socket) sockets.push_back(std::move(*socket));
    }
  }
  return sockets;
}

Status check_free(const std::string& protocol, const std::string& address, std::uint16_t port) {
  const bool tcp = protocol == "tcp";
  const std::string name = fmt::format("{} {} port {}", protocol, address, port);
  const SocketAddress wanted = parse(address, port);
  const UniqueFd socket(
      ::socket(wanted.family(), (tcp ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC, 0));
  // Else what is left of closed connections would be in the way; listeners are all the same.
  const int yes = 1;
  if (tcp) ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  int error = 0;
  const auto bind = [&] {
    const bool bound =
        socket && ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&wanted.storage),
                         wanted.length) == 0;
    error = bound ? 0 : errno;
    return bound;
  };
  if (bind() || (tcp && error == EADDRINUSE && forget_left_over(port) && bind())) return {};
  if (error == EADDRINUSE) return Error(Code::kRefused, "a program here has " + name);
  return Error(Code::kRefused, fmt::format("{} cannot be had here: {}", name, ::strerror(error)));
}

}  // namespace gcr::process
