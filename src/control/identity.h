// Who a certificate says that somebody is. Roles are URI entries of the subject alternative name:
// "gcr:role:agent" and "gcr:role:operator"; a certificate may carry both. Any thread. No Asio.
#pragma once

#include <openssl/x509.h>
#include <sys/types.h>

#include <optional>
#include <string>

#include "src/base/result.h"

namespace gcr::control {

/// A local user has no certificate, and no role.
struct PeerIdentity {
  std::string common_name;  ///< "uid 1000" of a local user
  bool is_agent = false;
  bool is_operator = false;
  std::optional<uid_t> uid{};  ///< of a local user, by SO_PEERCRED; nothing over a network
};

/// The common name of the certificate's subject, safe to print; empty if it has none.
std::string common_name(const X509* certificate);

/// What the certificate says, whether or not it is valid. Journals tell agents apart by the common
/// name: kPermissionDenied without one.
Result<PeerIdentity> identity_of(const X509* certificate);

/// The certificate carries the agent role and, unless `host` is empty, is made out to that host
/// name or address. kPermissionDenied if not.
Status check_agent_role(X509* certificate, const std::string& host = {});

/// Whether it is an IP address, and no name.
bool is_address(const std::string& host);

}  // namespace gcr::control
