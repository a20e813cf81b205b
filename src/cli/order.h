// What the command line orders an agent to do to a job: a migration, a checkpoint, a restore, a
// suspend or a resume. Each is one conversation with an agent; they differ in the request, and in
// what is said of them.
#pragma once

#include <string>

#include "proto/control.pb.h"
#include "src/cli/agents.h"
#include "src/cli/outcome.h"

namespace gcr::cli {

class MigrationView;

struct Order {
  NamedAgent agent;  ///< that is asked: the job's, or of a restore the one that restores
  control::Endpoint destination;  ///< of a migration
  proto::Envelope request;        ///< a MigrateRequest, LoadRequest, SuspendRequest, ResumeRequest
  std::string on_commit;          ///< for sh -c; empty: none
  bool detach = false;            ///< quit as soon as the order has an id
  std::string trace_path;         ///< empty: no trace is written
  bool json = false;
  bool quiet = false;
};

Task task_of(const Order& order);

/// Runs to the end of what was ordered. What happens goes to `view`, but not the outcome.
Outcome perform(const Order& order, MigrationView& view);

/// The same. What happens and the summary go to standard output (migration_view.h), an error to
/// standard error as one line.
ExitCode carry_out(const Order& order);

/// Asks the agent at SRC, which asks the one at DST if there is one, what prevents the migration or
/// the checkpoint, and prints the answer: kMigrated if nothing does, kRefused if something does.
ExitCode preflight(const Order& order);

}  // namespace gcr::cli
