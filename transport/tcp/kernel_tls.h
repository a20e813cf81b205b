// TLS in the kernel, if it has it (CONFIG_TLS): the same records as in records.h, made while the
// bytes are copied between user memory and the network.
#pragma once

#include "src/base/result.h"
#include "transport/tcp/traffic_secret.h"

namespace gcr::transport {

/// Makes the kernel encrypt everything that is sent on the connected `socket` from now on. False,
/// and nothing has changed, if the kernel has no TLS, or not this cipher.
Result<bool> let_kernel_seal(int socket, const TrafficSecret& secret);

/// The same for everything that is received.
Result<bool> let_kernel_open(int socket, const TrafficSecret& secret);

}  // namespace gcr::transport
