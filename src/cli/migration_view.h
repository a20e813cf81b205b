// The display of a migration, a checkpoint or a restore for an operator: one view for a terminal,
// one for files and pipes, one for scripts.
#pragma once

#include <memory>
#include <string>

#include "src/base/uuid.h"
#include "src/cli/order.h"

namespace gcr::cli {

/// A view. All output goes to standard output. Calls come from one thread.
class MigrationView {
 public:
  virtual ~MigrationView() = default;

  /// Called when the agent has accepted the order. By default a view shows nothing before the end.
  virtual void started(const Uuid&) {}
  virtual void event(const std::string& /*phase*/, const std::string& /*text*/) {}
  virtual void progress(const proto::Progress&) {}

  /// Called last. The caller writes errors to standard error.
  virtual void ended(const Outcome& outcome) = 0;
};

/// Creates the view for the command line and standard output: with `json` one line per event, with
/// `quiet` only the last line, on a terminal a live display, else plain lines. `order` must outlive
/// it.
std::unique_ptr<MigrationView> make_view(const Order& order);

/// Ends the view and writes an error to standard error; returns the exit status.
ExitCode show_outcome(MigrationView& view, Task task, const Outcome& outcome);

}  // namespace gcr::cli
