// Agents as named on the command line, and requests to them.
//
// Names are read from ~/.config/gcr-migrate/hosts.toml, then /etc/gcr-migrate/hosts.toml (TOML):
//   node1 = "10.0.0.1"                 # as on the command line: host or host:port
//   [node2]
//   agent = "10.0.0.2:7411"
//   ca    = "/etc/pki/cluster-2.crt"   # which certificates to show, if --ca, --cert, --key and
//   cert  = "/etc/pki/me.crt"          # --crl are not given; default: as without a name
//   key   = "/etc/pki/me.key"
//   crl   = "/etc/pki/revoked.crl"
// A missing file is skipped; kInvalidArgument, with file and line, for an invalid one.
#pragma once

#include <string>

#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/control/ask.h"

namespace CLI {
class App;
}

namespace gcr::cli {

/// An agent, and the files with the certificates to show it.
struct NamedAgent {
  control::Endpoint endpoint;
  control::TlsFiles tls;
};

/// Adds the options for the certificates to show and to trust: --ca, --cert, --key, --crl.
void describe_certificates(CLI::App& app, control::TlsFiles& tls);

/// Adds the options for the authority to trust if no certificate is shown: --ca, --crl.
void describe_authority(CLI::App& app, control::TlsFiles& tls);

/// Returns `given`; if it names no authority, with the authority's certificate of the first folder
/// that has one. kInvalidArgument if that cannot be read.
Result<control::TlsFiles> find_authority(control::TlsFiles given);

/// Returns the agent that the command line names `text`: a name of hosts.toml, or else an address
/// or a socket of this host. Files that `given` lacks are taken from hosts.toml, then from the
/// first folder that has an operator's certificate.
Result<NamedAgent> find_agent(const std::string& text, const control::TlsFiles& given);

/// Returns the address of an agent to which another agent will connect.
Result<control::Endpoint> find_destination(const std::string& text);

/// Loads the agent's certificates, unless it is local and needs none. Connecting and replying may
/// take 10 s each.
Result<control::AgentAddress> with_certificates(const NamedAgent& agent);

/// Calls control::ask_for_reply() and waits for it.
Result<proto::Envelope> ask_and_wait(const control::AgentAddress& agent,
                                     const proto::Envelope& question);

}  // namespace gcr::cli
