// Command line options of all gcr-migrate commands that talk to agents.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "src/base/result.h"
#include "src/control/control_channel.h"

namespace gcr::cli {

/// Which certificates to show, and to trust: --ca, --cert, --key, --crl.
void describe_certificates(CLI::App& app, control::TlsFiles& tls);

/// Options that are not given come from the first folder that has an operator's certificate.
control::TlsFiles with_defaults(control::TlsFiles files);

/// The agent that the command line calls `text`: a name of hosts.toml (hosts.h), whose certificate
/// files fill what is empty in `tls`, or else an address, or a socket of this host.
Result<control::Endpoint> find_agent(const std::string& text, control::TlsFiles& tls);

/// The same for an agent that another agent will connect to.
Result<control::Endpoint> find_destination(const std::string& text);

/// A number above 0.
Result<int> parse_pid(const std::string& text);

}  // namespace gcr::cli
