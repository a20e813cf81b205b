#include "migrate-agent/process/inspect/addresses.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "migrate-agent/process/inspect/sockets.h"
#include "src/base/unique_fd.h"

namespace gcr::process {
namespace {

constexpr char kMapped[] = "::ffff:";

struct FreeInterfaces {
  void operator()(ifaddrs* list) const { ::freeifaddrs(list); }
};

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
  const std::unique_ptr<ifaddrs, FreeInterfaces> interfaces(list);
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

}  // namespace

std::string unmapped(const std::string& address) {
  const bool mapped = address.starts_with(kMapped) && address.find('.') != std::string::npos;
  return mapped ? address.substr(std::strlen(kMapped)) : address;
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

namespace {

/// False if there is nothing left over, or something else has the port too.
bool forget_left_over(std::uint16_t port) {
  std::vector<InternetSocket> sockets = internet_sockets(::getpid());
  std::erase_if(sockets, [port](const InternetSocket& one) {
    return one.protocol != "tcp" || one.port != port;
  });
  if (sockets.empty() || !std::ranges::all_of(sockets, &InternetSocket::is_left_over)) return false;
  std::ranges::for_each(sockets, forget);
  return true;
}

}  // namespace

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
