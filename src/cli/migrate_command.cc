#include "src/cli/migrate_command.h"

#include <fmt/format.h>

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>

#include "src/cli/migration.h"
#include "src/cli/outcome.h"
#include "src/cli/status_text.h"
#include "src/cli/summary.h"
#include "src/cli/trace.h"

namespace gcr::cli {
namespace {

std::string detached_text(const MigrateOptions& options, const Outcome& outcome) {
  const std::string id = to_uuid(outcome.report.migration_id()).to_string();
  if (!options.json) return fmt::format("migration {}\n", id);
  google::protobuf::Struct object;
  (*object.mutable_fields())["migration_id"].set_string_value(id);
  return to_json(object) + "\n";
}

std::string text_of(const MigrateOptions& options, const Outcome& outcome) {
  if (outcome.detached) return detached_text(options, outcome);
  if (options.json) return to_json(outcome.report) + "\n";
  if (outcome.exit_code != ExitCode::kMigrated) return "";
  return outcome.from_journal ? short_summary(options, outcome.report)
                              : summary(options, outcome.report);
}

int show_outcome(const MigrateOptions& options, const Outcome& outcome) {
  fmt::print("{}", text_of(options, outcome));
  std::fflush(stdout);
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

Outcome run_migration(const MigrateOptions& options,
                      const std::shared_ptr<asio::ssl::context>& tls) {
  asio::io_context io(1);
  Migration migration(io, options, tls, [&options](const Outcome& outcome) {
    std::_Exit(show_outcome(options, outcome));
  });
  Outcome outcome;
  std::exception_ptr broken;
  asio::co_spawn(io, migration.run(), [&](std::exception_ptr exception, Outcome result) {
    broken = exception;
    outcome = std::move(result);
  });
  io.run();
  if (broken) return outcome_of(Error(Code::kInternal, "gcr-migrate failed where it cannot"), true);
  return outcome;
}

}  // namespace

int migrate_command(const MigrateOptions& options) {
  auto tls = control::make_tls_context(options.tls);
  if (!tls) return show_outcome(options, unusable(tls.error()));
  std::optional<TraceFile> trace;
  if (!options.trace_path.empty()) {
    auto file = TraceFile::open(options.trace_path);
    if (!file) return show_outcome(options, unusable(file.error()));
    trace = *std::move(file);
  }
  const Outcome outcome = run_migration(options, *tls);
  if (trace) {
    const Status written = trace->write(outcome.report);
    if (!written) fmt::print(stderr, "gcr-migrate: {}\n", written.error().message());
  }
  return show_outcome(options, outcome);
}

}  // namespace gcr::cli
