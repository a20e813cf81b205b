// What an operator sees of a migration: one view for a terminal, one for files and pipes, one for
// scripts.
#pragma once

#include <memory>
#include <string>

#include "src/base/uuid.h"
#include "src/cli/options.h"
#include "src/cli/outcome.h"

namespace gcr::cli {

/// Everything goes to standard output. Calls come from one thread.
class MigrationView {
 public:
  virtual ~MigrationView() = default;

  /// The agent has taken the migration on.
  virtual void started(const Uuid& id) = 0;
  virtual void event(const std::string& phase, const std::string& text) = 0;
  virtual void progress(const proto::Progress& progress) = 0;

  /// Nothing comes after it. What went wrong goes to standard error, by others.
  virtual void ended(const Outcome& outcome) = 0;
};

/// What the command line and standard output ask for: with `json` a line per event, with `quiet`
/// nothing but the last line, on a terminal a live display, else plain lines.
std::unique_ptr<MigrationView> make_view(const MigrateOptions& options);

}  // namespace gcr::cli
