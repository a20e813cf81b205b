// What binds a connection under TLS to one transfer: a value that TLS exports from its handshake
// (RFC 8446, 7.5; RFC 5705) with the transfer as its context. Only the two ends of that handshake
// know it, and both get another one on every connection and for every transfer.
#pragma once

#include <openssl/ssl.h>

#include <array>
#include <string>

#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::transport {

using Binding = std::array<unsigned char, 32>;

/// After the handshake of `ssl`, which is not needed afterwards.
Result<Binding> export_binding(SSL* ssl, const Uuid& transfer);

/// Proves knowledge of `token`, only on the connection of `binding`: HMAC-SHA256 of the binding
/// under the token.
std::string bound_token(const std::string& token, const Binding& binding);

}  // namespace gcr::transport
