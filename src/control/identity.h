// The identity in a certificate. Roles are URI entries of the subject alternative name:
// "gcr:role:agent" and "gcr:role:operator"; a certificate may carry both. Any thread. No Asio.
#pragma once

#include <openssl/x509.h>
#include <sys/types.h>

#include <optional>
#include <string>

#include "src/base/result.h"

namespace gcr::control {

/// Identity of a peer. A local user has no certificate and no role.
struct PeerIdentity {
  std::string common_name;  ///< of a local user: "uid 1000"
  bool is_agent = false;
  bool is_operator = false;
  std::optional<uid_t> uid{};  ///< of a local user, by SO_PEERCRED; none over a network
};

/// Returns the common name of the certificate's subject, safe to print; empty if it has none.
std::string common_name(const X509* certificate);

/// Returns the identity in the certificate, whether or not it is valid. kPermissionDenied without a
/// common name, by which journals distinguish agents.
Result<PeerIdentity> identity_of(const X509* certificate);

/// Checks that the certificate carries the agent role and, unless `host` is empty, is made out to
/// that host name or address. kPermissionDenied if not.
Status check_agent_role(X509* certificate, const std::string& host = {});

/// Returns whether `host` is an IP address, not a name.
bool is_address(const std::string& host);

}  // namespace gcr::control
