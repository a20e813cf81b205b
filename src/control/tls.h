// TLS as the control channel uses it: one function turns OpenSSL's and Asio's errors into ours.
#pragma once

#include <openssl/ssl.h>

#include <string>
#include <string_view>
#include <system_error>

#include "src/base/result.h"

namespace gcr::control {

/// Before a handshake as the connecting side: the server's certificate must be made out to `host`.
Status expect_host(SSL* ssl, const std::string& host);

/// What a failed operation on a TLS stream means. `peer` names the other side ("the agent at ...").
Error stream_error(SSL* ssl, const std::error_code& error, std::string_view peer);

/// "connection refused" from an error of the system or the resolver.
std::string reason_of(const std::error_code& error);

/// Why a host does not acknowledge what was sent to it.
inline constexpr char kUnacknowledged[] =
    "the host or the link is down, or large packets are lost on the way (MTU)";

}  // namespace gcr::control
