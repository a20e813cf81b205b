// What the commands of gcr-migrate that talk to agents have in common on their command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "src/base/result.h"
#include "src/control/control_channel.h"

namespace gcr::cli {

/// Which certificates to show, and to believe: --ca, --cert, --key, --crl.
void describe_certificates(CLI::App& app, control::TlsFiles& tls);

/// What is not given comes from the first folder that has an operator's certificate.
control::TlsFiles with_defaults(control::TlsFiles files);

/// The agent that the command line calls `text`: a name of hosts.toml (hosts.h), whose certificate
/// files fill what is empty in `tls`, or else an address, or a socket of this host.
Result<control::Endpoint> find_agent(const std::string& text, control::TlsFiles& tls);

/// The same for an agent that another one shall reach.
Result<control::Endpoint> find_destination(const std::string& text);

/// A number above 0.
Result<int> parse_pid(const std::string& text);

}  // namespace gcr::cli
