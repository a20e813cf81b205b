// Two ends of a TCP connection, and a TLS handshake between them without the transport's own code.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <utility>

#include "src/base/unique_fd.h"
#include "tests/support/test_certificates.h"
#include "transport/tcp/traffic_secret.h"

namespace gcr::test {

/// The two ends of a connection over the loopback device: the client's, the server's.
std::pair<UniqueFd, UniqueFd> connected_pair();

/// The secrets of each direction's keys at one end.
struct Secrets {
  transport::TrafficSecret client;
  transport::TrafficSecret server;
};

/// One end of the handshake that Stream makes, with `ciphers` only. Throws std::runtime_error.
Secrets shake_hands(const UniqueFd& socket, bool client, const char* ciphers);

/// Both ends' handshakes on a separate connection: the client's secrets, the server's.
std::pair<Secrets, Secrets> agreed_secrets(const char* ciphers);

}  // namespace gcr::test
