#include "migrate-agent/process/sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "src/base/unique_fd.h"

namespace gcr::process {
namespace {

constexpr std::size_t kReceiveBytes = 64 * 1024;

struct Request {
  nlmsghdr header;
  unix_diag_req body;
};

/// Adds one answer to `peers`.
void add_peer(const nlmsghdr* header, std::map<std::uint64_t, std::uint64_t>& peers) {
  if (header->nlmsg_len < NLMSG_LENGTH(sizeof(unix_diag_msg))) return;
  const auto* body = static_cast<const unix_diag_msg*>(NLMSG_DATA(header));
  const auto* attribute = reinterpret_cast<const rtattr*>(body + 1);
  auto left = static_cast<int>(header->nlmsg_len - NLMSG_LENGTH(sizeof(*body)));
  for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
    if (attribute->rta_type != UNIX_DIAG_PEER) continue;
    if (RTA_PAYLOAD(attribute) < sizeof(std::uint32_t)) continue;
    std::uint32_t peer = 0;
    std::memcpy(&peer, RTA_DATA(attribute), sizeof(peer));
    if (peer != 0) peers[body->udiag_ino] = peer;
  }
}

/// "0100007F" -> "127.0.0.1": words of 32 bits in the host's order, one or four of them. Empty if
/// it is neither.
std::string address_in_numbers(const std::string& digits) {
  if (digits.size() != 8 && digits.size() != 32) return {};
  std::array<std::uint32_t, 4> words{};
  for (std::size_t i = 0; i < digits.size() / 8; ++i) {
    if (!(std::istringstream(digits.substr(i * 8, 8)) >> std::hex >> words[i])) return {};
  }
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int family = digits.size() == 8 ? AF_INET : AF_INET6;
  const char* const shown = ::inet_ntop(family, words.data(), text.data(), text.size());
  return shown != nullptr ? shown : "";
}

}  // namespace

Result<std::map<std::uint64_t, std::uint64_t>> unix_peers() {
  const UniqueFd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!socket) return Error::from_errno(errno, "cannot ask the kernel about Unix sockets");
  Request request{};
  request.header.nlmsg_len = sizeof(request);
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.body.sdiag_family = AF_UNIX;
  request.body.udiag_states = ~0u;
  request.body.udiag_show = UDIAG_SHOW_PEER;
  if (::send(socket.get(), &request, sizeof(request), 0) < 0) {
    return Error::from_errno(errno, "cannot ask the kernel about Unix sockets");
  }
  std::map<std::uint64_t, std::uint64_t> peers;
  alignas(nlmsghdr) static thread_local char buffer[kReceiveBytes];
  for (;;) {
    const ssize_t got = ::recv(socket.get(), buffer, sizeof(buffer), 0);
    if (got <= 0) return Error::from_errno(errno, "cannot hear about Unix sockets");
    auto left = static_cast<unsigned>(got);
    const auto* header = reinterpret_cast<const nlmsghdr*>(buffer);
    for (; NLMSG_OK(header, left); header = NLMSG_NEXT(header, left)) {
      if (header->nlmsg_type == NLMSG_DONE) return peers;
      if (header->nlmsg_type == NLMSG_ERROR) {
        return Error(Code::kUnsupported, "the kernel does not tell about Unix sockets");
      }
      add_peer(header, peers);
    }
  }
}

std::optional<InternetSocket> parse_socket(const std::string& protocol, const std::string& line) {
  // sl local remote state queues timer retransmits uid timeout inode
  std::istringstream fields(line);
  const std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};
  if (words.size() < 10) return std::nullopt;
  const std::size_t colon = words[1].find(':');
  const std::string address = address_in_numbers(words[1].substr(0, colon));
  if (colon == std::string::npos || address.empty()) return std::nullopt;
  unsigned port = 0;
  unsigned state = 0;
  InternetSocket socket{protocol, address, 0, 0, false};
  if (!(std::istringstream(words[1].substr(colon + 1)) >> std::hex >> port) ||
      !(std::istringstream(words[3]) >> std::hex >> state) ||
      !(std::istringstream(words[9]) >> socket.inode)) {
    return std::nullopt;
  }
  socket.port = static_cast<std::uint16_t>(port);
  socket.connection = protocol == "tcp" && state != TCP_LISTEN && state != TCP_CLOSE;
  return socket;
}

std::vector<InternetSocket> internet_sockets(pid_t pid) {
  std::vector<InternetSocket> sockets;
  for (const char* name : {"tcp", "tcp6", "udp", "udp6"}) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/net/" + name);
    std::string line;
    std::getline(file, line);  // the heading
    while (std::getline(file, line)) {
      auto socket = parse_socket(std::string(name).substr(0, 3), line);
      if (socket) sockets.push_back(std::move(*socket));
    }
  }
  return sockets;
}

}  // namespace gcr::process
