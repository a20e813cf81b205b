// The command line of migrate-agent.
#pragma once

namespace gcr::daemon {

/// Runs the whole program. Exit status: 0 after an orderly end (or a valid configuration with
/// --check-config), 1 if the agent cannot start, 2 for a wrong command line or configuration.
int agent_main(int argc, char** argv);

}  // namespace gcr::daemon
