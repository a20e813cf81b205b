#include "migrate-agent/criu/sockets/socket_options.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>

#include "migrate-agent/criu/sockets/open_sockets.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {
namespace {

// Newer than the C library's headers.
constexpr int kSoPassPidfd = 76;
constexpr int kIpLocalPortRange = 51;

constexpr std::size_t kMaxOptionName = 16;  ///< of an algorithm, with its zero (TCP_CA_NAME_MAX)

struct OptionRow {
  std::string_view name;
  int level;
  int option;
  bool is_name = false;  ///< a string, not an int
};

// In the order in which they are set.
constexpr OptionRow kOptionRows[] = {
    {"busy-poll", SOL_SOCKET, SO_BUSY_POLL},
    {"lock-filter", SOL_SOCKET, SO_LOCK_FILTER},
    {"max-pacing-rate", SOL_SOCKET, SO_MAX_PACING_RATE},
    {"pass-pidfd", SOL_SOCKET, kSoPassPidfd},
    {"peek-offset", SOL_SOCKET, SO_PEEK_OFF},
    {"prefer-busy-poll", SOL_SOCKET, SO_PREFER_BUSY_POLL},
    {"queue-overflow", SOL_SOCKET, SO_RXQ_OVFL},
    {"select-error-queue", SOL_SOCKET, SO_SELECT_ERR_QUEUE},
    {"timestamp", SOL_SOCKET, SO_TIMESTAMP},
    {"timestamp-ns", SOL_SOCKET, SO_TIMESTAMPNS},
    {"timestamping", SOL_SOCKET, SO_TIMESTAMPING},
    {"zerocopy", SOL_SOCKET, SO_ZEROCOPY},
    {"ip-bind-address-no-port", IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT},
    {"ip-local-port-range", IPPROTO_IP, kIpLocalPortRange},
    {"ip-min-ttl", IPPROTO_IP, IP_MINTTL},
    {"ip-mtu-discover", IPPROTO_IP, IP_MTU_DISCOVER},
    {"ip-multicast-all", IPPROTO_IP, IP_MULTICAST_ALL},
    {"ip-multicast-loop", IPPROTO_IP, IP_MULTICAST_LOOP},
    {"ip-multicast-ttl", IPPROTO_IP, IP_MULTICAST_TTL},
    {"ip-receive-errors", IPPROTO_IP, IP_RECVERR},
    {"ip-receive-tos", IPPROTO_IP, IP_RECVTOS},
    {"ip-receive-ttl", IPPROTO_IP, IP_RECVTTL},
    {"ip-tos", IPPROTO_IP, IP_TOS},
    {"ip-ttl", IPPROTO_IP, IP_TTL},
    {"ipv6-auto-flow-label", IPPROTO_IPV6, IPV6_AUTOFLOWLABEL},
    {"ipv6-do-not-fragment", IPPROTO_IPV6, IPV6_DONTFRAG},
    {"ipv6-min-hops", IPPROTO_IPV6, IPV6_MINHOPCOUNT},
    {"ipv6-mtu-discover", IPPROTO_IPV6, IPV6_MTU_DISCOVER},
    {"ipv6-multicast-all", IPPROTO_IPV6, IPV6_MULTICAST_ALL},
    {"ipv6-multicast-hops", IPPROTO_IPV6, IPV6_MULTICAST_HOPS},
    {"ipv6-multicast-loop", IPPROTO_IPV6, IPV6_MULTICAST_LOOP},
    {"ipv6-receive-class", IPPROTO_IPV6, IPV6_RECVTCLASS},
    {"ipv6-receive-errors", IPPROTO_IPV6, IPV6_RECVERR},
    {"ipv6-receive-hops", IPPROTO_IPV6, IPV6_RECVHOPLIMIT},
    {"ipv6-traffic-class", IPPROTO_IPV6, IPV6_TCLASS},
    {"ipv6-unicast-hops", IPPROTO_IPV6, IPV6_UNICAST_HOPS},
    {"tcp-congestion", IPPROTO_TCP, TCP_CONGESTION, true},
    {"tcp-defer-accept", IPPROTO_TCP, TCP_DEFER_ACCEPT},
    {"tcp-fast-open", IPPROTO_TCP, TCP_FASTOPEN},
    {"tcp-in-queue", IPPROTO_TCP, TCP_INQ},
    {"tcp-linger2", IPPROTO_TCP, TCP_LINGER2},
    {"tcp-not-sent-low-water", IPPROTO_TCP, TCP_NOTSENT_LOWAT},
    {"tcp-save-syn", IPPROTO_TCP, TCP_SAVE_SYN},
    {"tcp-syn-retries", IPPROTO_TCP, TCP_SYNCNT},
    {"tcp-thin-timeouts", IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS},
    {"tcp-tx-delay", IPPROTO_TCP, TCP_TX_DELAY},
    {"tcp-user-timeout", IPPROTO_TCP, TCP_USER_TIMEOUT},
    {"udp-gro", IPPROTO_UDP, UDP_GRO},
    {"udp-no-check6-receive", IPPROTO_UDP, UDP_NO_CHECK6_RX},
    {"udp-no-check6-send", IPPROTO_UDP, UDP_NO_CHECK6_TX},
    {"udp-segment", IPPROTO_UDP, UDP_SEGMENT},
};

/// What decides which options a socket has, and their first values.
struct SocketKind {
  int domain;
  int type;
  int protocol;

  auto operator<=>(const SocketKind&) const = default;

  bool has(const OptionRow& row) const {
    switch (row.level) {
      case SOL_SOCKET:
        return true;
      case IPPROTO_IP:
        return domain != AF_UNIX;
      case IPPROTO_IPV6:
        return domain == AF_INET6;
      default:
        return domain != AF_UNIX && protocol == row.level;
    }
  }
};

/// Nothing for a kind that has none of the options.
std::optional<SocketKind> socket_kind(const UniqueFd& socket) {
  const auto domain = option_of(socket, SOL_SOCKET, SO_DOMAIN);
  const auto type = option_of(socket, SOL_SOCKET, SO_TYPE);
  const auto protocol = option_of(socket, SOL_SOCKET, SO_PROTOCOL);
  if (domain != AF_INET && domain != AF_INET6 && domain != AF_UNIX) return std::nullopt;
  if (!type || !protocol) return std::nullopt;
  return SocketKind{*domain, *type, *protocol};
}

struct OptionValue {
  int number = 0;
  std::string name{};

  bool operator==(const OptionValue&) const = default;
};

/// Nothing if the kernel does not know the option.
std::optional<OptionValue> read_option(const UniqueFd& socket, const OptionRow& row) {
  if (!row.is_name) {
    const auto number = option_of(socket, row.level, row.option);
    return number ? std::optional(OptionValue{*number}) : std::nullopt;
  }
  std::array<char, kMaxOptionName> name{};
  socklen_t length = name.size();
  if (::getsockopt(socket.get(), row.level, row.option, name.data(), &length) != 0) {
    return std::nullopt;
  }
  return OptionValue{0, std::string(name.data(), ::strnlen(name.data(), name.size()))};
}

/// 0, or an errno value.
int set_option(const UniqueFd& socket, const OptionRow& row, const OptionValue& value) {
  const void* const bytes =
      row.is_name ? static_cast<const void*>(value.name.data()) : &value.number;
  const std::size_t size = row.is_name ? value.name.size() : sizeof(value.number);
  return ::setsockopt(socket.get(), row.level, row.option, bytes, static_cast<socklen_t>(size)) == 0
             ? 0
             : errno;
}

using OptionValues = std::array<std::optional<OptionValue>, std::size(kOptionRows)>;

OptionValues read_all(const UniqueFd& socket, const SocketKind& kind) {
  OptionValues values;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (kind.has(kOptionRows[i])) values[i] = read_option(socket, kOptionRows[i]);
  }
  return values;
}

/// What new sockets have: nothing for a kind of which the agent cannot make any.
class NewSockets {
 public:
  const OptionValues& of(const SocketKind& kind) {
    const auto known = values_.find(kind);
    if (known != values_.end()) return known->second;
    const UniqueFd socket(::socket(kind.domain, kind.type | SOCK_CLOEXEC, kind.protocol));
    return values_.emplace(kind, read_all(socket, kind)).first->second;
  }

 private:
  std::map<SocketKind, OptionValues> values_;
};

void read_options(const OpenSocket& socket, NewSockets& others, SocketOptions& options) {
  const auto kind = socket_kind(socket.copy);
  if (!kind) return;
  const OptionValues& usual = others.of(*kind);
  const OptionValues values = read_all(socket.copy, *kind);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i] || values[i] == usual[i]) continue;
    proto::SocketOption& option = *options.Add();
    option.set_number(socket.number);
    option.set_option(std::string(kOptionRows[i].name));
    option.set_value(values[i]->number);
    option.set_name(values[i]->name);
  }
}

/// For the calling thread: a raw system call, because libc's may be for all threads.
Status drop_network_administration() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> sets{};
  if (::syscall(SYS_capget, &header, sets.data()) == 0) {
    sets[CAP_TO_INDEX(CAP_NET_ADMIN)].effective &= ~CAP_TO_MASK(CAP_NET_ADMIN);
    if (::syscall(SYS_capset, &header, sets.data()) == 0) return {};
  }
  return Error::from_errno(errno, "cannot drop the capability CAP_NET_ADMIN");
}

class OptionWriter {
 public:
  Status apply(pid_t pid, const SocketOptions& options) {
    GCR_ASSIGN(const UniqueFd process, procfs::open_pidfd(pid));
    UniqueFd copy;
    std::optional<int> number;
    for (const proto::SocketOption& option : options) {
      const auto* const row = std::ranges::find(kOptionRows, option.option(), &OptionRow::name);
      if (row == std::end(kOptionRows) || option.name().size() >= kMaxOptionName ||
          option.name().empty() == row->is_name) {
        return Error(Code::kProtocol,
                     fmt::format("\"{}\" is no option of a socket", option.option()));
      }
      if (number != option.number()) {
        number = option.number();
        copy.reset(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), *number, 0)));
      }
      const int failed = copy ? set_option(copy, *row, {option.value(), option.name()}) : EBADF;
      if (failed == 0) continue;
      const std::string value = row->is_name ? option.name() : std::to_string(option.value());
      ++refused_[{fmt::format("{} {}", row->name, value), failed}];
    }
    return {};
  }

  std::vector<std::string> notes() const {
    std::vector<std::string> notes;
    for (const auto& [what, sockets] : refused_) {
      notes.push_back(fmt::format("{} cannot have {} here: {}",
                                  sockets == 1 ? "a socket" : fmt::format("{} sockets", sockets),
                                  what.first, std::generic_category().message(what.second)));
    }
    return notes;
  }

 private:
  std::map<std::pair<std::string, int>, int> refused_;  ///< sockets by option and error
};

}  // namespace

Result<std::vector<SocketOptions>> read_socket_options(const std::vector<pid_t>& pids) {
  std::vector<SocketOptions> options(pids.size());
  NewSockets others;
  GCR_TRY(visit_sockets(pids, [&](const OpenSocket& socket) -> Status {
    const auto place = std::ranges::find(pids, socket.pid) - pids.begin();
    read_options(socket, others, options[static_cast<std::size_t>(place)]);
    return {};
  }));
  return options;
}

Result<std::vector<std::string>> apply_socket_options(
    const std::vector<std::pair<pid_t, SocketOptions>>& processes) {
  if (std::ranges::all_of(processes, [](const auto& one) { return one.second.empty(); })) {
    return std::vector<std::string>();
  }
  OptionWriter writer;
  Status done;
  std::thread([&] {
    done = drop_network_administration();
    for (const auto& [pid, options] : processes) {
      if (done) done = writer.apply(pid, options);
    }
  }).join();
  GCR_TRY(done);
  return writer.notes();
}

}  // namespace gcr::criu
