// The command lines of queries to one agent, and of orders to a migration that exists.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "src/base/result.h"
#include "src/cli/options.h"

namespace gcr::cli {

/// Text fields are those that CLI11 cannot check.
struct RawAsk {
  std::string agent;
  bool discard_here = false;
  AskOptions options;
};

using AskCommands = std::map<AskOptions::Kind, CLI::App*>;

/// At most one of them is parsed.
AskCommands describe_asks(CLI::App& app, RawAsk& raw);

/// The one that was parsed; kInvalid if none was.
AskOptions::Kind kind_of(const AskCommands& commands);

/// kInvalidArgument says what is wrong.
Result<AskOptions> check(const RawAsk& raw, AskOptions::Kind kind);

}  // namespace gcr::cli
