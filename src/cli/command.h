// The commands of gcr-migrate. Each is described to CLI11 first, and then does its work.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "proto/control.pb.h"
#include "src/cli/outcome.h"

namespace gcr::cli {

/// What to do, by the part of the command line that orders it; called once that has been read.
/// Results go to standard output, an error to standard error as one line.
using Commands = std::map<const CLI::App*, std::function<ExitCode()>>;

/// `gcr-migrate SRC DST PID`, on the main command, and `gcr-migrate preflight`.
void add_migrate(CLI::App& app, Commands& commands);

/// `gcr-migrate checkpoint HOST PID DIR`, once or at intervals.
void add_checkpoint(CLI::App& app, Commands& commands);

/// `gcr-migrate restore HOST DIR [NAME]`.
void add_restore(CLI::App& app, Commands& commands);

/// `gcr-migrate checkpoints`, `verify` and `prune`: a directory of checkpoints on this machine.
void add_store(CLI::App& app, Commands& commands);

/// `gcr-migrate run`: becomes a command, with libgcr-preload.so first in LD_PRELOAD and nothing
/// else changed; or, with --output, starts it below a supervisor. `after_mark` are the words behind
/// its "--", known once the command is carried out.
void add_run(CLI::App& app, Commands& commands, const std::vector<std::string>& after_mark);

/// `gcr-migrate slurm JOBID`: becomes `gcr-slurm migrate JOBID`.
void add_slurm(CLI::App& app, Commands& commands);

/// `gcr-migrate journal`: every record of every journal that the paths name, the oldest journal of
/// a directory first, and what is wrong with it. Needs no lock and changes nothing.
void add_journal(CLI::App& app, Commands& commands);

/// `gcr-migrate timeline REPORT`: a report that `--json` printed, as a picture.
void add_timeline(CLI::App& app, Commands& commands);

/// `gcr-migrate suspend`, `resume` and `swap`.
void add_suspensions(CLI::App& app, Commands& commands);

/// `gcr-migrate cancel`, `continue`, `set`, `status`, `list`, `host` and `resolve`: an operator's
/// queries to an agent, and orders to a migration that exists.
void add_asks(CLI::App& app, Commands& commands);

}  // namespace gcr::cli
