// The commands of gcr-migrate. Each first describes its options to CLI11, and then runs.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "proto/control.pb.h"
#include "src/cli/outcome.h"

namespace gcr::cli {

/// The function of each command, called once its part of the command line has been parsed. Results
/// go to standard output, an error to standard error as one line.
using Commands = std::map<const CLI::App*, std::function<ExitCode()>>;

/// `gcr-migrate SRC DST PID`, on the main command, and `gcr-migrate preflight`.
void add_migrate(CLI::App& app, Commands& commands);

/// `gcr-migrate checkpoint HOST PID DIR`, once or at intervals.
void add_checkpoint(CLI::App& app, Commands& commands);

/// `gcr-migrate restore HOST DIR [NAME]`.
void add_restore(CLI::App& app, Commands& commands);

/// `gcr-migrate checkpoints`, `verify` and `prune`: a directory of checkpoints on this machine.
void add_store(CLI::App& app, Commands& commands);

/// `gcr-migrate run`: executes a command with libgcr-preload.so first in LD_PRELOAD and nothing
/// else changed; or, with --output, starts it below a supervisor. `after_mark` are the words after
/// "--", known once the command runs.
void add_run(CLI::App& app, Commands& commands, const std::vector<std::string>& after_mark);

/// `gcr-migrate slurm JOBID`: executes `gcr-slurm migrate JOBID`.
void add_slurm(CLI::App& app, Commands& commands);

/// `gcr-migrate turns HOST JOB...`: executes gcr-turns.
void add_turns(CLI::App& app, Commands& commands);

/// `gcr-migrate container [preflight] ENGINE:NAME SRC DST`: executes gcr-container.
void add_container(CLI::App& app, Commands& commands);

/// `gcr-migrate journal`: prints every record of the journals that the paths name, the oldest
/// journal of a directory first, and any damage. Takes no lock and changes nothing.
void add_journal(CLI::App& app, Commands& commands);

/// `gcr-migrate timeline REPORT`: draws a report that `--json` printed.
void add_timeline(CLI::App& app, Commands& commands);

/// `gcr-migrate suspend`, `resume` and `swap`.
void add_suspensions(CLI::App& app, Commands& commands);

/// `gcr-migrate cancel`, `continue`, `set`, `status`, `list`, `host` and `resolve`: an operator's
/// queries to an agent and orders about an existing migration.
void add_asks(CLI::App& app, Commands& commands);

}  // namespace gcr::cli
