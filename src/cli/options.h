// The command line of gcr-migrate.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "src/control/control_channel.h"

namespace gcr::cli {

struct MigrateOptions {
  control::Endpoint source;
  control::Endpoint destination;
  int pid = 0;
  unsigned lanes = 0;  ///< 0: the agent chooses
  bool json = false;
  control::TlsFiles tls;
};

struct RunOptions {
  std::vector<std::string> command;  ///< at least one word
};

/// The command line asked for something that is done already (--help), or it is wrong: leave.
struct Leave {
  int status = 0;
};

/// Reads the command line. Help goes to standard output, what is wrong to standard error.
std::variant<MigrateOptions, RunOptions, Leave> parse_options(int argc, char** argv);

}  // namespace gcr::cli
