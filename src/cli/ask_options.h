// The command lines of the questions to one agent, and of the orders to a migration that is there.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "src/base/result.h"
#include "src/cli/options.h"

namespace gcr::cli {

/// What CLI11 cannot check lies here as text.
struct RawAsk {
  std::string agent;
  bool discard_here = false;
  AskOptions options;
};

using AskCommands = std::map<AskOptions::Kind, CLI::App*>;

/// One of them at most is parsed.
AskCommands describe_asks(CLI::App& app, RawAsk& raw);

/// The one that was parsed; kInvalid if none was.
AskOptions::Kind kind_of(const AskCommands& commands);

/// kInvalidArgument says what is wrong.
Result<AskOptions> check(const RawAsk& raw, AskOptions::Kind kind);

}  // namespace gcr::cli
