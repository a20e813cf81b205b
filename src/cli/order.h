// An order to an agent about a job: a migration, a checkpoint, a restore, a suspend or a resume.
// Each is one conversation with an agent; they differ in the request and in the text of the output.
#pragma once

#include <chrono>
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

/// Sends the request and reads progress until the report; with `detach` until the agent has
/// accepted the order. If the connection is lost, returns the outcome from the agent's journal.
/// Handles SIGINT and SIGTERM while it runs: the first cancels the order, the second quits this
/// process.
Outcome converse(const Order& order, const control::AgentAddress& agent, MigrationView& view);

/// Loads the certificates, calls converse() and writes the trace. Shows events in `view`, but not
/// the outcome.
Outcome perform(const Order& order, MigrationView& view);

/// Carries out the order to its end. Events and the summary go to standard output
/// (migration_view.h), an error to standard error as one line.
ExitCode carry_out(const Order& order);

/// Takes checkpoints: each begins `every` after the beginning of the one before, or at once if that
/// took longer, and is reported like carry_out() does. A failed one is retried at the time of the
/// next. Ends, with the status of the last checkpoint, when the process has ended (kEnded); on
/// SIGINT or SIGTERM, which cancel a running checkpoint; after a failure before the first success;
/// and after three failures in a row, so that monitoring of this process notices that the job has
/// no recent checkpoint.
ExitCode take_checkpoints(const Order& order, std::chrono::milliseconds every);

/// Asks the agent at SRC, which asks the one at DST if there is one, for the obstacles to the
/// migration or checkpoint, and prints the reply. Returns kMigrated if there are none, else
/// kRefused.
ExitCode preflight(const Order& order);

/// Returns the report as text: the result, the phases, the rounds and the reason for the
/// switchover; omits fields that the report lacks, and all figures if it was lost. Ends with
/// last_line(), and consists only of it unless the order succeeded.
std::string summary(const Order& order, const Outcome& outcome);

/// Returns the last line on standard output, for scripts, as `gcr-migrate --help` describes it:
/// "migrated pid=<n> vram_bytes=…", "checkpointed name=<name> …", "restored pid=<n> …". If the
/// report was lost, it has only the PID or the name, or "unknown"; if the order was detached, it is
/// "migration <id>" or the like. Empty if the order failed.
std::string last_line(Task task, const Outcome& outcome);

}  // namespace gcr::cli
