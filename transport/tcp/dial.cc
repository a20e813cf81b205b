#include "transport/tcp/dial.h"

#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "transport/tcp/stream.h"

namespace gcr::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

int milliseconds_until(steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
}

Error cannot_connect(int errno_value) {
  return Error(Code::kUnavailable, Error::from_errno(errno_value, "connecting").message());
}

Status wait_connected(int fd, milliseconds timeout, int stop) {
  const auto deadline = steady_clock::now() + timeout;
  std::array<pollfd, 2> entries = {pollfd{fd, POLLOUT, 0}, pollfd{stop, POLLIN, 0}};
  int ready = 0;
  do {
    ready = ::poll(entries.data(), entries.size(), milliseconds_until(deadline));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) {
    return Error(Code::kTimeout, fmt::format("no answer within {} ms", timeout.count()));
  }
  if (entries[1].revents != 0) return Error(Code::kCancelled, "the transfer was cancelled");
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error != 0) return cannot_connect(error);
  return {};
}

Result<UniqueFd> connect_numeric(const DialAddress::Numeric& address, milliseconds timeout,
                                 int stop) {
  const auto* generic = reinterpret_cast<const sockaddr*>(&address.storage);
  UniqueFd fd(::socket(generic->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Error::from_errno(errno, "creating a socket");
  if (::connect(fd.get(), generic, address.length) != 0) {
    if (errno != EINPROGRESS) return cannot_connect(errno);
    GCR_TRY(wait_connected(fd.get(), timeout, stop));
  }
  GCR_TRY(set_blocking(fd.get()));
  return fd;
}

}  // namespace

Result<DialAddress> resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int result = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (result != 0) {
    return Error(Code::kUnavailable,
                 fmt::format("cannot resolve {}: {}", host, ::gai_strerror(result)));
  }
  const std::unique_ptr<addrinfo, FreeAddresses> owner(list);
  DialAddress address{.name = fmt::format("{} port {}", host, port), .numeric = {}};
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    DialAddress::Numeric& numeric = address.numeric.emplace_back();
    numeric.length = std::min<socklen_t>(at->ai_addrlen, sizeof numeric.storage);
    std::memcpy(&numeric.storage, at->ai_addr, numeric.length);
  }
  return address;
}

Result<UniqueFd> dial(const DialAddress& address, milliseconds timeout, int stop) {
  Error last(Code::kUnavailable, "no address");
  for (const DialAddress::Numeric& numeric : address.numeric) {
    auto socket = connect_numeric(numeric, timeout, stop);
    if (socket || socket.error().code() == Code::kCancelled) return socket;
    last = std::move(socket).error();
  }
  return last;
}

}  // namespace gcr::transport
