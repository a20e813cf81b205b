// The sockets of lanes.
#pragma once

#include <chrono>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "transport/address.h"

namespace gcr::transport {

/// Sets the socket options of every lane: no delay, and a timeout for a peer that is silent for
/// `peer_timeout`, with data under way (TCP_USER_TIMEOUT) or without (keepalive).
Status tune_socket(int fd, std::chrono::milliseconds peer_timeout);

/// Connects to the first of `addresses` that answers within `timeout`, which holds for each. Ends
/// with kCancelled as soon as `stop` is readable. Otherwise fails with kTimeout if the last one did
/// not answer, else with kUnavailable. The socket blocks.
Result<UniqueFd> dial(const std::vector<SocketAddress>& addresses,
                      std::chrono::milliseconds timeout, int stop);

}  // namespace gcr::transport
