// Agents as the command line names them, and questions to them.
//
// Names stand in ~/.config/gcr-migrate/hosts.toml, then /etc/gcr-migrate/hosts.toml (TOML):
//   node1 = "10.0.0.1"                 # as on the command line: host or host:port
//   [node2]
//   agent = "10.0.0.2:7411"
//   ca    = "/etc/pki/cluster-2.crt"   # which certificates to show, if --ca, --cert, --key and
//   cert  = "/etc/pki/me.crt"          # --crl are not given; default: as without a name
//   key   = "/etc/pki/me.key"
//   crl   = "/etc/pki/revoked.crl"
// A file that is missing is skipped; kInvalidArgument, with file and line, for one that is wrong.
#pragma once

#include <string>

#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/control/ask.h"

namespace CLI {
class App;
}

namespace gcr::cli {

/// An agent, and which files have the certificates to show it.
struct NamedAgent {
  control::Endpoint endpoint;
  control::TlsFiles tls;
};

/// Which certificates to show, and to trust: --ca, --cert, --key, --crl.
void describe_certificates(CLI::App& app, control::TlsFiles& tls);

/// Which authority to trust, where nothing is shown: --ca, --crl.
void describe_authority(CLI::App& app, control::TlsFiles& tls);

/// `given`, with the authority's certificate of the first folder that has one unless it names one.
/// kInvalidArgument if it cannot be read.
Result<control::TlsFiles> find_authority(control::TlsFiles given);

/// The agent that the command line calls `text`: a name of hosts.toml, or else an address, or a
/// socket of this host. Files that `given` lacks are those of hosts.toml, and then those of the
/// first folder that has an operator's certificate.
Result<NamedAgent> find_agent(const std::string& text, const control::TlsFiles& given);

/// The address for an agent that another agent will connect to.
Result<control::Endpoint> find_destination(const std::string& text);

/// With its certificates, unless the agent is local: then it needs none. Connecting and answering
/// may take 10 s each.
Result<control::AgentAddress> with_certificates(const NamedAgent& agent);

/// control::ask_for_reply(), and waits for it.
Result<proto::Envelope> ask_and_wait(const control::AgentAddress& agent,
                                     const proto::Envelope& question);

}  // namespace gcr::cli
