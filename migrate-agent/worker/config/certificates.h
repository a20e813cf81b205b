// Checks of an agent's own certificates that need no peer, and of the name in a peer's.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/result.h"
#include "src/control/tls_files.h"

namespace gcr::worker {

/// Checks that a peer would accept this agent's certificate now: its files match, it is signed by
/// the authority, valid at this time, carries the agent role and, unless `host` is empty, is made
/// out to that host name or address. kInvalidArgument or kPermissionDenied says what is wrong.
Status check_own_certificate(const control::TlsFiles& files, const std::string& host);

/// Returns when each certificate expires, in seconds since 1970: "authority", "agent" and, if one
/// is configured, "revocations". Files that cannot be read are omitted.
std::map<std::string, double> certificate_expiry(const control::TlsFiles& files);

/// Checks that this agent, whose common name is `self`, accepts `what` ("migrations") of the agent
/// with that common name: one of `peers` ([[peers]] of agent.toml), or any if `peers` is empty;
/// always its own. kPermissionDenied. Any thread.
Status check_peer(const std::vector<std::string>& peers, const std::string& self,
                  const std::string& agent, std::string_view what);

}  // namespace gcr::worker
