// Names for agents: ~/.config/gcr-migrate/hosts.toml, then /etc/gcr-migrate/hosts.toml (TOML).
//
//   node1 = "10.0.0.1"                 # as on the command line: host or host:port
//   [node2]
//   agent = "10.0.0.2:7411"
//   ca    = "/etc/pki/cluster-2.crt"   # which certificates to show, if --ca, --cert, --key and
//   cert  = "/etc/pki/me.crt"          # --crl are not given; default: as without a name
//   key   = "/etc/pki/me.key"
//   crl   = "/etc/pki/revoked.crl"
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "src/base/result.h"
#include "src/control/control_channel.h"

namespace gcr::cli {

struct NamedHost {
  control::Endpoint agent;
  control::TlsFiles tls;  ///< empty if the file does not say
};

/// The entry for this name in the first of `files` that has it; nothing if none has it. A file that
/// is missing is skipped; kInvalidArgument, with file and line, for one that is wrong or cannot be
/// read.
Result<std::optional<NamedHost>> find_host(const std::vector<std::filesystem::path>& files,
                                           const std::string& name);

}  // namespace gcr::cli
