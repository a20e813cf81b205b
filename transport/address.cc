#include "transport/address.h"

#include <fmt/format.h>
#include <netdb.h>

#include <algorithm>
#include <cstring>
#include <memory>

namespace gcr::transport {

std::string describe(const Address& address) {
  return fmt::format("{} port {}", address.host, address.port);
}

Result<std::vector<SocketAddress>> resolve(const Address& address) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const std::string port = std::to_string(address.port);
  const int error = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &list);
  if (error != 0) {
    return Error(Code::kUnavailable,
                 fmt::format("cannot resolve {}: {}", address.host, ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  std::vector<SocketAddress> resolved;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    SocketAddress& one = resolved.emplace_back();
    one.length = std::min<socklen_t>(at->ai_addrlen, sizeof one.storage);
    std::memcpy(&one.storage, at->ai_addr, one.length);
  }
  return resolved;
}

}  // namespace gcr::transport
