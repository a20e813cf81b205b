#include "migrate-agent/process/inspect/sockets.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/tcp.h>
#include <netlink/attr.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "migrate-agent/process/inspect/addresses.h"

namespace gcr::process {
namespace {

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

}  // namespace

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
  if (tcp && state == TCP_LISTEN) {
    std::istringstream(words[4].substr(colon + 1)) >> std::hex >> socket.waiting;
  }
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
