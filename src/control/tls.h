// TLS for the control channel. One function converts errors of OpenSSL and Asio.
#pragma once

#include <openssl/ssl.h>

#include <string>
#include <string_view>
#include <system_error>

#include "src/base/result.h"

namespace gcr::control {

/// Sets up a handshake as the connecting side: the server's certificate must be made out to `host`.
Status expect_host(SSL* ssl, const std::string& host);

/// Converts the error of a failed operation on a TLS stream. `peer` names the other side ("the
/// agent at ...").
Error stream_error(SSL* ssl, const std::error_code& error, std::string_view peer);

/// Formats an error of the system or the resolver: "connection refused".
std::string reason_of(const std::error_code& error);

/// Possible reasons why a host does not acknowledge data.
inline constexpr char kUnacknowledged[] =
    "the host or the link is down, or the network drops large packets (MTU)";

}  // namespace gcr::control
