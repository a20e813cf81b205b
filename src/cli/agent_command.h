// `gcr-migrate cancel`, `status`, `list` and `resolve`: what an agent knows of migrations, and what
// an operator may do about them.
#pragma once

#include "src/cli/options.h"

namespace gcr::cli {

/// Asks the agent and prints what it answers. The exit status: 0, or as exit_code.h has it.
int agent_command(const AgentOptions& options);

}  // namespace gcr::cli
