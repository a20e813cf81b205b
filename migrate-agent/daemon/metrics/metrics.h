// The daemon's Prometheus metrics. Names and units follow Prometheus conventions; label values come
// from fixed sets, never from a peer. docs/metrics.md describes each metric.
//
// Belongs to the daemon's thread.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <map>
#include <string>
#include <string_view>

#include "proto/registry.pb.h"

namespace gcr::daemon {

/// Returns the outcome as one word: "migrated", "suspended", "resumed", "refused", "cancelled",
/// "unconfirmed" (the other side has not replied) or "failed".
std::string_view outcome_word(const registry::Outcome& outcome);

/// Current values, read for each request.
struct Present {
  unsigned workers = 0;          ///< processes
  unsigned unauthenticated = 0;  ///< control connections that have not shown a certificate
  unsigned authenticated = 0;
  unsigned outgoing = 0;  ///< migrations with this host as their source
  unsigned incoming = 0;
  unsigned recoveries = 0;
  std::map<std::string, double> certificate_expiry;  ///< "agent", …: seconds since 1970
};

class Metrics {
 public:
  Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  /// Counts a migration, or the recovery of one, that has ended.
  void ended(const registry::Outcome& outcome);

  /// Counts a connection that was closed because too many have not shown a certificate yet.
  void startup_refused() { startups_refused_.Increment(); }

  /// Counts a worker that was killed by a signal.
  void worker_crashed() { worker_crashes_.Increment(); }

  /// Counts journal records that could not be written, or a damaged journal.
  void journal_errors(unsigned count) { journal_errors_.Increment(count); }

  /// Returns all metrics in Prometheus's text format.
  std::string text(const Present& present);

 private:
  using Counters = prometheus::Family<prometheus::Counter>;
  using Gauges = prometheus::Family<prometheus::Gauge>;
  using Histograms = prometheus::Family<prometheus::Histogram>;

  Counters& counters(const char* name, const char* help);
  Gauges& gauges(const char* name, const char* help);
  Histograms& histograms(const char* name, const char* help);
  void sent(const proto::MigrateReport& report, double rate_bytes_per_s);
  void timed(const proto::MigrateReport& report, const std::string& role);

  prometheus::Registry registry_;
  Counters& migrations_;
  Counters& recoveries_;
  Counters& sent_bytes_;
  Counters& wire_bytes_;
  Counters& reconnections_;
  prometheus::Histogram& downtime_;
  prometheus::Histogram& duration_;
  prometheus::Histogram& processes_;
  Histograms& phases_;
  Histograms& rate_;
  Gauges& in_progress_;
  prometheus::Gauge& recoveries_in_progress_;
  Gauges& connections_;
  prometheus::Gauge& workers_;
  Gauges& certificate_expiry_;
  prometheus::Counter& startups_refused_;
  prometheus::Counter& worker_crashes_;
  prometheus::Counter& journal_errors_;
};

}  // namespace gcr::daemon
