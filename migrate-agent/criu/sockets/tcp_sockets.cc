#include "migrate-agent/criu/sockets/tcp_sockets.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <functional>
#include <optional>

#include "migrate-agent/criu/sockets/open_sockets.h"
#include "migrate-agent/process/inspect/sockets.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {
namespace {

constexpr sock_filter kDropAll = BPF_STMT(BPF_RET | BPF_K, 0);

struct TcpSocket {
  UniqueFd fd;
  TcpEnd local;
  std::optional<TcpConnection> connection;
};

/// By getsockname or getpeername.
template <class GetName>
std::optional<TcpEnd> end_of(const UniqueFd& socket, GetName get_name) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (get_name(socket.get(), reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    return std::nullopt;
  }
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    return TcpEnd{process::address_text(AF_INET, &v4.sin_addr), ntohs(v4.sin_port)};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
  return TcpEnd{process::address_text(AF_INET6, &v6.sin6_addr), ntohs(v6.sin6_port)};
}

std::optional<TcpSocket> as_tcp(UniqueFd fd) {
  const auto family = option_of(fd, SOL_SOCKET, SO_DOMAIN);
  if ((family != AF_INET && family != AF_INET6) ||
      option_of(fd, SOL_SOCKET, SO_PROTOCOL) != IPPROTO_TCP ||
      option_of(fd, SOL_SOCKET, SO_TYPE) != SOCK_STREAM) {
    return std::nullopt;
  }
  TcpSocket socket{std::move(fd), {}, {}};
  const auto local = end_of(socket.fd, ::getsockname);
  const auto remote = end_of(socket.fd, ::getpeername);
  if (local) socket.local = *local;
  if (local && remote) socket.connection = {*local, *remote};
  return socket;
}

/// Visits each TCP socket of the processes.
Status visit_tcp(const std::vector<pid_t>& pids,
                 const std::function<Status(const TcpSocket&)>& visit) {
  return visit_sockets(pids, [&](OpenSocket open) -> Status {
    const auto socket = as_tcp(std::move(open.copy));
    return socket ? visit(*socket) : Status();
  });
}

/// What is to be known of all sockets before one is touched.
struct Overview {
  TcpConnections connections;
  /// Ports whose listeners let them be used again, as what they accept does.
  std::set<std::uint16_t> reusable;

  bool is_inside(const TcpSocket& socket) const {
    return socket.connection && connections.contains(socket.connection->other_end());
  }
};

Result<Overview> look_at_sockets(const std::vector<pid_t>& pids) {
  Overview overview;
  GCR_TRY(visit_tcp(pids, [&](const TcpSocket& socket) -> Status {
    if (socket.connection) overview.connections.insert(*socket.connection);
    const bool listens = option_of(socket.fd, SOL_SOCKET, SO_ACCEPTCONN).value_or(0) != 0;
    const bool reusable = option_of(socket.fd, SOL_SOCKET, SO_REUSEADDR).value_or(0) != 0;
    if (listens && reusable) overview.reusable.insert(socket.local.port);
    return {};
  }));
  return overview;
}

/// How many instructions the filter of a socket has; none if it cannot be told.
std::optional<socklen_t> filter_of(const UniqueFd& socket, sock_filter& first) {
  socklen_t length = 0;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_GET_FILTER, nullptr, &length) != 0) {
    return std::nullopt;
  }
  socklen_t room = 1;
  if (length != 1) return length;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_GET_FILTER, &first, &room) != 0) {
    return std::nullopt;
  }
  return length;
}

Status lock(const TcpSocket& socket) {
  sock_filter drop = kDropAll;
  const sock_fprog filter{1, &drop};
  if (filter_of(socket.fd, drop) != 0) return {};
  drop = kDropAll;
  if (::setsockopt(socket.fd.get(), SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) == 0) {
    return {};
  }
  return Error::from_errno(errno, "cannot lock the TCP connection of " + socket.local.to_string());
}

void unlock(const TcpSocket& socket) {
  sock_filter first{};
  if (filter_of(socket.fd, first) != 1 || first.code != kDropAll.code || first.k != kDropAll.k) {
    return;
  }
  const int ignored = 0;
  ::setsockopt(socket.fd.get(), SOL_SOCKET, SO_DETACH_FILTER, &ignored, sizeof(ignored));
}

Status end_repair_of(const TcpSocket& socket, bool reusable) {
  const int off = 0;
  // The repair has changed SO_REUSEADDR, and its end clears it.
  const int reuse = reusable ? 1 : 0;
  if (::setsockopt(socket.fd.get(), IPPROTO_TCP, TCP_REPAIR, &off, sizeof(off)) == 0 &&
      ::setsockopt(socket.fd.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse)) == 0) {
    return {};
  }
  return Error::from_errno(
      errno, "cannot let the TCP connection of " + socket.local.to_string() + " go on");
}

}  // namespace

std::string TcpEnd::to_string() const { return process::end_text(address, port); }

Status lock_connections(const std::vector<pid_t>& pids) {
  GCR_ASSIGN(const Overview overview, look_at_sockets(pids));
  return visit_tcp(pids, [&](const TcpSocket& socket) -> Status {
    return overview.is_inside(socket) ? lock(socket) : Status();
  });
}

Status end_repair(const std::vector<pid_t>& pids, Repaired which) {
  GCR_ASSIGN(const Overview overview, look_at_sockets(pids));
  return visit_tcp(pids, [&](const TcpSocket& socket) -> Status {
    if (which == Repaired::kOutside && overview.is_inside(socket)) return {};
    unlock(socket);
    if (option_of(socket.fd, IPPROTO_TCP, TCP_REPAIR).value_or(0) == 0) return {};
    return end_repair_of(socket, overview.reusable.contains(socket.local.port));
  });
}

Status send_at_once(const std::vector<pid_t>& pids) {
  GCR_ASSIGN(const Overview overview, look_at_sockets(pids));
  return visit_tcp(pids, [&](const TcpSocket& socket) -> Status {
    if (!socket.connection || overview.is_inside(socket)) return {};
    const int on = 1;
    if (::setsockopt(socket.fd.get(), IPPROTO_TCP, TCP_REPAIR, &on, sizeof(on)) != 0) return {};
    return end_repair_of(socket, overview.reusable.contains(socket.local.port));
  });
}

Status end_connections(const std::vector<pid_t>& pids, const TcpConnections& closing,
                       const TcpConnections& resetting) {
  if (closing.empty() && resetting.empty()) return {};
  return visit_tcp(pids, [&](const TcpSocket& socket) -> Status {
    bool done = true;
    if (socket.connection && closing.contains(*socket.connection)) {
      done = ::shutdown(socket.fd.get(), SHUT_WR) == 0;
    } else if (socket.connection && resetting.contains(*socket.connection)) {
      const sockaddr none{AF_UNSPEC, {}};
      done = ::connect(socket.fd.get(), &none, sizeof(none)) == 0;
    }
    if (done || errno == ENOTCONN) return {};
    return Error::from_errno(errno, "cannot end the TCP connection from " +
                                        socket.connection->local.to_string() + " to " +
                                        socket.connection->remote.to_string());
  });
}

}  // namespace gcr::criu
