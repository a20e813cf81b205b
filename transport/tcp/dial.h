// Making connections: looks addresses up once, and connects within a time limit, cancellably.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::transport {

/// The result of looking up a name: its socket addresses, in the order in which to try them.
struct DialAddress {
  struct Numeric {
    sockaddr_storage storage{};
    socklen_t length = 0;
  };
  std::string name;  ///< for messages: "HOST port PORT"
  std::vector<Numeric> numeric;
};

/// Looks up `host`, a name or a numeric address. Blocks for as long as the resolver does. Fails
/// with kUnavailable.
Result<DialAddress> resolve(const std::string& host, std::uint16_t port);

/// Connects to the first socket address that answers within `timeout`, which holds for each. Ends
/// with kCancelled as soon as `stop` (an eventfd) is readable. Otherwise fails with kTimeout if the
/// last one did not answer, else with kUnavailable. The socket blocks.
Result<UniqueFd> dial(const DialAddress& address, std::chrono::milliseconds timeout, int stop);

}  // namespace gcr::transport
