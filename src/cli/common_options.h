// What the commands of gcr-migrate that talk to agents have in common on their command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "src/base/result.h"
#include "src/control/control_channel.h"

namespace gcr::cli {

/// Which certificates to show: --ca, --cert, --key.
void describe_certificates(CLI::App& app, control::TlsFiles& tls);

/// What is not given comes from the first folder that has an operator's certificate.
control::TlsFiles with_defaults(control::TlsFiles files);

/// A number above 0.
Result<int> parse_pid(const std::string& text);

}  // namespace gcr::cli
