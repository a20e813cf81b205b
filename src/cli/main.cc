// gcr-migrate: moves a running GPU process to another host, and starts processes that can be moved.
#include <variant>

#include "src/cli/ask_command.h"
#include "src/cli/journal_command.h"
#include "src/cli/migrate_command.h"
#include "src/cli/options.h"
#include "src/cli/preflight_command.h"
#include "src/cli/run_command.h"
#include "src/cli/timeline_command.h"

int main(int argc, char** argv) {
  using namespace gcr::cli;
  const auto parsed = parse_options(argc, argv);
  if (const auto* leave = std::get_if<Leave>(&parsed)) return leave->status;
  if (const auto* run = std::get_if<RunOptions>(&parsed)) return run_command(*run);
  if (const auto* journal = std::get_if<JournalOptions>(&parsed)) return journal_command(*journal);
  if (const auto* timeline = std::get_if<TimelineOptions>(&parsed)) {
    return timeline_command(*timeline);
  }
  if (const auto* ask = std::get_if<AskOptions>(&parsed)) return ask_command(*ask);
  if (const auto* preflight = std::get_if<PreflightOptions>(&parsed)) {
    return preflight_command(*preflight);
  }
  return migrate_command(std::get<MigrateOptions>(parsed));
}
