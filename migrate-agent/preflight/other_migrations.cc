#include "migrate-agent/preflight/other_migrations.h"

#include <fmt/format.h>

#include "migrate-agent/journal/journal_files.h"

namespace gcr::agent {
namespace {

bool is_same(const journal::ProcessId& one, const journal::ProcessId& other) {
  return one.pid() == other.pid() && one.start_time() == other.start_time();
}

}  // namespace

void check_other_migrations(const Config& config, journal::Role role, const Uuid& own,
                            const std::optional<journal::ProcessId>& process,
                            preflight::Findings& findings) {
  const auto entries = journal::list(config.state_dir);
  if (!entries) return;  // check_room() tells of a directory that cannot be used
  unsigned unfinished = 0;
  for (const journal::Entry& entry : *entries) {
    if (entry.role != role || entry.migration == own) continue;
    const auto contents = journal::read(entry.path);
    if (!contents || !journal::unfinished(contents->records)) continue;
    ++unfinished;
    if (!process || !is_same(contents->records.front().began().process(), *process)) continue;
    findings.add("in-migration", fmt::format("migration {} has process {}",
                                             entry.migration.to_string(), process->pid()));
  }
  if (unfinished < config.max_migrations) return;
  findings.add("too-many-migrations", fmt::format("{} migrations are under way, {} are allowed",
                                                  unfinished, config.max_migrations));
}

}  // namespace gcr::agent
