// Sockets for lanes.
#pragma once

#include <chrono>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "transport/address.h"

namespace gcr::transport {

/// Sets the socket options of a lane: no delay, and failure when the peer is silent for
/// `peer_timeout`, both with unacknowledged data (TCP_USER_TIMEOUT) and without (keepalive).
Status tune_socket(int fd, std::chrono::milliseconds peer_timeout);

/// Connects to the first of `addresses` that answers; `timeout` applies to each. Fails with
/// kCancelled as soon as `stop` is readable, with kTimeout if the last address did not answer, and
/// with kUnavailable otherwise. The socket blocks.
Result<UniqueFd> dial(const std::vector<SocketAddress>& addresses,
                      std::chrono::milliseconds timeout, int stop);

}  // namespace gcr::transport
