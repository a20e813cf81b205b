// An order to an agent about a job: a migration, a checkpoint, a restore, a suspend or a resume.
// Each is one conversation with an agent; they differ in the request and in the text of the output.
#pragma once

#include <string>

#include "proto/control.pb.h"
#include "src/cli/agents.h"
#include "src/cli/outcome.h"

namespace gcr::cli {

class MigrationView;

struct Order {
  NamedAgent agent;  ///< that gets the order: the job's, or for a restore the one that restores
  control::Endpoint destination;  ///< of a migration
  proto::Envelope request;        ///< a MigrateRequest, LoadRequest, SuspendRequest, ResumeRequest
  std::string on_commit;          ///< for sh -c; empty: none
  bool detach = false;            ///< quit as soon as the order has an id
  std::string trace_path;         ///< empty: no trace is written
  bool json = false;
  bool quiet = false;
};

Task task_of(const Order& order);

/// Carries out the order to its end. Shows events in `view`, but not the outcome.
Outcome perform(const Order& order, MigrationView& view);

/// Carries out the order to its end. Events and the summary go to standard output
/// (migration_view.h), an error to standard error as one line.
ExitCode carry_out(const Order& order);

/// Asks the agent at SRC, which asks the one at DST if there is one, for the obstacles to the
/// migration or checkpoint, and prints the reply. Returns kMigrated if there are none, else
/// kRefused.
ExitCode preflight(const Order& order);

}  // namespace gcr::cli
