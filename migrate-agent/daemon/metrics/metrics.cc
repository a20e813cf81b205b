#include "migrate-agent/daemon/metrics/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>

#include "src/base/result.h"
#include "src/base/version.h"

namespace gcr::daemon {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

constexpr std::array kRoles = {"source", "destination"};
constexpr std::array kOutcomes = {"migrated", "refused", "cancelled", "unconfirmed", "failed"};
constexpr std::array kTransports = {"tcp", "rdma"};
constexpr std::array kKinds = {"vram", "image"};

/// Names of phases (worker/runtime/phases.h). Any other name counts as "other".
constexpr std::array kPhases = {"preflight",
                                "compare hosts",
                                "preflight at both sides",
                                "prepare",
                                "make room for VRAM",
                                "pre-copy",
                                "switchover",
                                "commit",
                                "examine",
                                "find door",
                                "freeze",
                                "digest",
                                "round",
                                "last round",
                                "close gate",
                                "arm keeper",
                                "detach VRAM",
                                "control checkpoint",
                                "look again",
                                "take network down",
                                "criu dump",
                                "read settings",
                                "drop zero pages",
                                "release source",
                                "start CRIU",
                                "images round",
                                "flush images",
                                "complete images",
                                "criu restore",
                                "unlock",
                                "control restore",
                                "apply settings",
                                "attach VRAM",
                                "verify VRAM",
                                "stop copy",
                                "fill and verify VRAM",
                                "undone closing",
                                "take back",
                                "continue",
                                "complete",
                                "open",
                                "read",
                                "restore",
                                "write the vote",
                                "seize",
                                "read files",
                                "compare files",
                                "compare rights",
                                "read files in memory",
                                "make files",
                                "adapt sockets",
                                "read layers",
                                "layer round",
                                "apply layers",
                                "standstill",
                                "stop",
                                "copy",
                                "verify",
                                "keep",
                                "send",
                                "load",
                                "create",
                                "release",
                                "bring back"};

Buckets phase_buckets() { return {0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 600}; }
Buckets rate_buckets() { return {1e7, 3e7, 1e8, 3e8, 1e9, 2e9, 3e9, 5e9, 1e10, 2e10, 5e10, 1e11}; }

template <class Names>
const char* known(const Names& names, std::string_view name, const char* other) {
  const auto found = std::ranges::find(names, name);
  return found == names.end() ? other : *found;
}

const char* role_of(const journal::Began& migration) {
  return migration.role() == journal::Began::SOURCE ? "source" : "destination";
}

constexpr double seconds(double milliseconds) { return milliseconds / 1000; }

}  // namespace

std::string_view outcome_word(const registry::Outcome& outcome) {
  const proto::MigrateReport& report = outcome.report();
  if (report.migrated()) return "migrated";
  if (report.suspension().done()) return report.suspension().resumed() ? "resumed" : "suspended";
  if (report.committed() || report.recovering()) return "unconfirmed";
  if (report.code() == to_string(Code::kCancelled)) return "cancelled";
  if (report.code() == to_string(Code::kRefused)) return "refused";
  return "failed";
}

Metrics::Counters& Metrics::counters(const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry_);
}

Metrics::Gauges& Metrics::gauges(const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry_);
}

Metrics::Histograms& Metrics::histograms(const char* name, const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_);
}

Metrics::Metrics()
    : migrations_(counters("gcr_migrations_total", "Migrations that have ended, by outcome.")),
      recoveries_(
          counters("gcr_recoveries_total",
                   "Migrations that were recovered after their worker had died, by outcome.")),
      sent_bytes_(
          counters("gcr_sent_bytes_total", "Bytes of GPU memory and images sent to other hosts.")),
      wire_bytes_(counters("gcr_wire_bytes_total",
                           "Bytes of data connections to other hosts, before encryption.")),
      reconnections_(counters("gcr_reconnections_total",
                              "Data connections that were lost and reestablished.")),
      downtime_(
          histograms("gcr_migration_downtime_seconds",
                     "Downtime of processes that were moved away.")
              .Add({}, Buckets{0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60})),
      duration_(histograms("gcr_migration_duration_seconds",
                           "Duration of migrations away from this host, from order to report.")
                    .Add({}, Buckets{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600})),
      processes_(histograms("gcr_migration_processes",
                            "Number of processes per migration away from this host.")
                     .Add({}, Buckets{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024})),
      phases_(histograms("gcr_migration_phase_seconds", "Duration of phases of migrations.")),
      rate_(histograms("gcr_migration_rate_bytes_per_second",
                       "Rates at which migrations sent GPU memory.")),
      in_progress_(gauges("gcr_migrations_in_progress", "Migrations that are running.")),
      recoveries_in_progress_(gauges("gcr_recoveries_in_progress",
                                     "Migrations that are being recovered after a worker's death.")
                                  .Add({})),
      connections_(gauges("gcr_connections", "Control connections.")),
      workers_(gauges("gcr_workers", "Worker processes.").Add({})),
      certificate_expiry_(gauges("gcr_certificate_expiry_timestamp_seconds",
                                 "When a certificate or revocation list expires.")),
      startups_refused_(counters("gcr_startups_refused_total",
                                 "Connections closed because too many had not shown a certificate.")
                            .Add({})),
      worker_crashes_(
          counters("gcr_worker_crashes_total", "Workers that were killed by a signal.").Add({})),
      journal_errors_(counters("gcr_journal_errors_total",
                               "Journal records that could not be written, and damaged journals.")
                          .Add({})) {
  gauges("gcr_build_info", "The release and the commit that this agent was built from.")
      .Add({{"version", release()}, {"commit", source_commit()}})
      .Set(1);
  // Add the counters now, so that they exist before their first increase.
  for (const char* role : kRoles) {
    for (const char* outcome : kOutcomes) {
      migrations_.Add({{"role", role}, {"outcome", outcome}});
      recoveries_.Add({{"role", role}, {"outcome", outcome}});
    }
  }
  for (const char* transport : kTransports) {
    for (const char* kind : kKinds) sent_bytes_.Add({{"transport", transport}, {"kind", kind}});
    wire_bytes_.Add({{"transport", transport}});
    reconnections_.Add({{"transport", transport}});
    rate_.Add({{"transport", transport}}, rate_buckets());
  }
}

void Metrics::ended(const registry::Outcome& outcome) {
  const std::string role = role_of(outcome.migration());
  Counters& counter = outcome.recovered() ? recoveries_ : migrations_;
  counter.Add({{"role", role}, {"outcome", std::string(outcome_word(outcome))}}).Increment();
  journal_errors(outcome.journal_errors());
  if (outcome.recovered()) return;
  timed(outcome.report(), role);
  if (role == kRoles.front()) sent(outcome.report(), outcome.rate_bytes_per_s());
}

void Metrics::timed(const proto::MigrateReport& report, const std::string& role) {
  for (const proto::PhaseTime& phase : report.phases()) {
    phases_.Add({{"role", role}, {"phase", known(kPhases, phase.name(), "other")}}, phase_buckets())
        .Observe(seconds(phase.duration_ms()));
  }
  if (role != kRoles.front() || !report.migrated()) return;
  downtime_.Observe(seconds(report.downtime_ms()));
  duration_.Observe(seconds(report.total_ms()));
  processes_.Observe(report.processes());
}

void Metrics::sent(const proto::MigrateReport& report, double rate_bytes_per_s) {
  if (report.transport().empty()) return;
  const std::string transport = known(kTransports, report.transport(), "other");
  const auto count = [](Counters& counters, const prometheus::Labels& labels, std::uint64_t by) {
    counters.Add(labels).Increment(static_cast<double>(by));
  };
  count(sent_bytes_, {{"transport", transport}, {"kind", "vram"}}, report.sent_vram_bytes());
  count(sent_bytes_, {{"transport", transport}, {"kind", "image"}}, report.sent_image_bytes());
  count(wire_bytes_, {{"transport", transport}}, report.wire_bytes());
  count(reconnections_, {{"transport", transport}}, report.reconnections());
  if (rate_bytes_per_s <= 0) return;
  rate_.Add({{"transport", transport}}, rate_buckets()).Observe(rate_bytes_per_s);
}

std::string Metrics::text(const Present& present) {
  in_progress_.Add({{"role", "source"}}).Set(present.outgoing);
  in_progress_.Add({{"role", "destination"}}).Set(present.incoming);
  recoveries_in_progress_.Set(present.recoveries);
  connections_.Add({{"state", "unauthenticated"}}).Set(present.unauthenticated);
  connections_.Add({{"state", "authenticated"}}).Set(present.authenticated);
  workers_.Set(present.workers);
  for (const auto& [name, when] : present.certificate_expiry) {
    certificate_expiry_.Add({{"certificate", name}}).Set(when);
  }
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

}  // namespace gcr::daemon
