// Addresses as librdmacm takes them.
#pragma once

#include <sys/socket.h>

#include <string>

#include "src/base/result.h"
#include "transport/rdma/rdma.h"

namespace gcr::transport::rdma {

/// The first IPv4 or IPv6 address that `address` stands for, with its port.
Result<sockaddr_storage> resolve(const RdmaAddress& address);

/// "10.0.0.1 port 7000".
std::string describe(const RdmaAddress& address);

/// The address alone, as numbers.
std::string numeric_host(const sockaddr* address);

}  // namespace gcr::transport::rdma
