#include "src/cli/migrate_command.h"

#include <fmt/format.h>

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <utility>

#include "src/cli/migration.h"
#include "src/cli/migration_view.h"
#include "src/cli/outcome.h"
#include "src/cli/trace.h"

namespace gcr::cli {
namespace {

int show_outcome(MigrationView& view, const Outcome& outcome) {
  view.ended(outcome);
  if (outcome.exit_code != ExitCode::kMigrated) {
    fmt::print(stderr, "gcr-migrate: {}\n", error_line(outcome));
  }
  return static_cast<int>(outcome.exit_code);
}

/// A file that the command line names cannot be used.
Outcome unusable(const Error& error) {
  Outcome outcome = outcome_of(error, false);
  outcome.exit_code = ExitCode::kUsage;
  return outcome;
}

Outcome run_migration(const MigrateOptions& options, const std::shared_ptr<asio::ssl::context>& tls,
                      MigrationView& view) {
  asio::io_context io(1);
  Migration migration(io, options, tls, view,
                      [&view](const Outcome& outcome) { std::_Exit(show_outcome(view, outcome)); });
  Outcome outcome;
  std::exception_ptr broken;
  asio::co_spawn(io, migration.run(), [&](std::exception_ptr exception, Outcome result) {
    broken = std::move(exception);
    outcome = std::move(result);
  });
  io.run();
  if (broken)
    return outcome_of(Error(Code::kInternal, "internal error: unexpected exception"), true);
  return outcome;
}

}  // namespace

int migrate_command(const MigrateOptions& options) {
  const auto view = make_view(options);
  auto tls = tls_for(options.source, options.tls);
  if (!tls) return show_outcome(*view, unusable(tls.error()));
  std::optional<TraceFile> trace;
  if (!options.trace_path.empty()) {
    auto file = TraceFile::open(options.trace_path);
    if (!file) return show_outcome(*view, unusable(file.error()));
    trace = *std::move(file);
  }
  const Outcome outcome = run_migration(options, *tls, *view);
  if (trace) {
    const Status written = trace->write(outcome.report);
    if (!written) fmt::print(stderr, "gcr-migrate: {}\n", written.error().message());
  }
  return show_outcome(*view, outcome);
}

}  // namespace gcr::cli
