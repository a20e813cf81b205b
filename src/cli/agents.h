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

#include <asio/awaitable.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/control/control_channel.h"

namespace CLI {
class App;
}

namespace gcr::cli {

inline constexpr std::chrono::milliseconds kConnectTimeout = std::chrono::seconds(10);

/// An agent, and which files have the certificates to show it.
struct NamedAgent {
  control::Endpoint endpoint;
  control::TlsFiles tls;
};

/// An agent, and the certificates to show it.
struct Agent {
  control::Endpoint endpoint;
  std::shared_ptr<asio::ssl::context> tls;  ///< null: only local sockets can be used
};

/// Which certificates to show, and to trust: --ca, --cert, --key, --crl.
void describe_certificates(CLI::App& app, control::TlsFiles& tls);

/// The agent that the command line calls `text`: a name of hosts.toml, or else an address, or a
/// socket of this host. Files that `given` lacks are those of hosts.toml, and then those of the
/// first folder that has an operator's certificate.
Result<NamedAgent> find_agent(const std::string& text, const control::TlsFiles& given);

/// The address for an agent that another agent will connect to.
Result<control::Endpoint> find_destination(const std::string& text);

/// With its certificates, unless the agent is local: then it needs none.
Result<Agent> with_certificates(const NamedAgent& agent);

/// The agent's reply to the question; a Failure becomes its Error. Connecting and answering may
/// take `timeout` each.
asio::awaitable<Result<proto::Envelope>> ask(const Agent& agent, const proto::Envelope& question,
                                             std::chrono::milliseconds timeout = kConnectTimeout);

/// The same, and waits for it.
Result<proto::Envelope> ask_and_wait(const Agent& agent, const proto::Envelope& question,
                                     std::chrono::milliseconds timeout = kConnectTimeout);

}  // namespace gcr::cli
