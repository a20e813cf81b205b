#include "migrate-agent/roles/ending.h"

#include <algorithm>

#include "migrate-agent/journal/journal.h"

namespace gcr::agent {
namespace {

/// Of sending VRAM; 0 if nothing was sent.
double sending_rate(const proto::MigrateReport& report) {
  double bytes = 0;
  double seconds = 0;
  for (const proto::Round& round : report.rounds()) {
    if (round.rate_bytes_per_s() <= 0) continue;
    bytes += static_cast<double>(round.sent_bytes());
    seconds += static_cast<double>(round.sent_bytes()) / round.rate_bytes_per_s();
  }
  return seconds > 0 ? bytes / seconds : 0;
}

}  // namespace

registry::Outcome ending_of(journal::Began migration, proto::MigrateReport report,
                            unsigned journal_errors) {
  registry::Outcome outcome;
  outcome.set_journal_errors(journal_errors);
  outcome.set_rate_bytes_per_s(sending_rate(report));
  auto* phases = report.mutable_phases();
  const auto elsewhere = [own = journal::to_string(migration.role())](const auto& phase) {
    return phase.host() != own;
  };
  phases->erase(std::remove_if(phases->begin(), phases->end(), elsewhere), phases->end());
  *outcome.mutable_report() = std::move(report);
  *outcome.mutable_migration() = std::move(migration);
  return outcome;
}

}  // namespace gcr::agent
