// TLS in the kernel, where it has it (CONFIG_TLS): the same records as records.h, made while the
// bytes are copied between user memory and the network.
#pragma once

#include "src/base/result.h"
#include "transport/tcp/traffic_secret.h"

namespace gcr::transport {

/// Lets the kernel seal all that is sent on the connected `socket` from now on. False, and nothing
/// has changed, where the kernel cannot: it has no TLS, or none with this cipher.
Result<bool> let_kernel_seal(int socket, const TrafficSecret& secret);

/// The same for all that is received.
Result<bool> let_kernel_open(int socket, const TrafficSecret& secret);

}  // namespace gcr::transport
