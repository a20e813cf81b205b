// The counters of the daemon, as Prometheus would read them.
#include "migrate-agent/daemon/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/result.h"
#include "src/base/version.h"

namespace gcr::daemon {
namespace {

using testing::HasSubstr;
using testing::Not;

registry::Outcome outcome(journal::Began::Role role) {
  registry::Outcome made;
  made.mutable_migration()->set_role(role);
  return made;
}

registry::Outcome failed_with(Code code) {
  registry::Outcome made = outcome(journal::Began::SOURCE);
  made.mutable_report()->set_code(std::string(to_string(code)));
  return made;
}

/// A successful migration of this host.
registry::Outcome migrated() {
  registry::Outcome made = outcome(journal::Began::SOURCE);
  proto::MigrateReport& report = *made.mutable_report();
  report.set_migrated(true);
  report.set_committed(true);
  report.set_transport("tcp");
  report.set_downtime_ms(450);
  report.set_total_ms(2900);
  report.set_processes(9);
  report.set_sent_vram_bytes(1000);
  report.set_sent_image_bytes(50);
  report.set_wire_bytes(1100);
  report.set_reconnections(2);
  made.set_rate_bytes_per_s(2e9);
  return made;
}

void add_phase(registry::Outcome& outcome, const std::string& name, double duration_ms) {
  proto::PhaseTime& phase = *outcome.mutable_report()->add_phases();
  phase.set_name(name);
  phase.set_duration_ms(duration_ms);
}

std::string line(const std::string& series, const std::string& value) {
  return "\n" + series + " " + value + "\n";
}

TEST(Metrics, CountersExistFromTheStart) {
  const std::string text = Metrics().text({});
  for (const char* word : {"migrated", "refused", "cancelled", "unconfirmed", "failed"}) {
    for (const char* role : {"source", "destination"}) {
      EXPECT_THAT(text, HasSubstr(line("gcr_migrations_total{outcome=\"" + std::string(word) +
                                           "\",role=\"" + role + "\"}",
                                       "0")));
    }
  }
  EXPECT_THAT(text, HasSubstr(line("gcr_journal_errors_total", "0")));
  EXPECT_THAT(text, HasSubstr(line("gcr_migration_downtime_seconds_count", "0")));
}

TEST(Metrics, BuildIsNamed) {
  EXPECT_THAT(Metrics().text({}),
              HasSubstr("gcr_build_info{commit=\"" + std::string(source_commit()) +
                        "\",version=\"" + release() + "\"} 1"));
}

TEST(Metrics, OutcomesHaveStableNames) {
  registry::Outcome suspended = outcome(journal::Began::SOURCE);
  suspended.mutable_report()->mutable_suspension()->set_done(true);
  EXPECT_EQ(outcome_word(suspended), "suspended");
  suspended.mutable_report()->mutable_suspension()->set_resumed(true);
  EXPECT_EQ(outcome_word(suspended), "resumed");
  EXPECT_EQ(outcome_word(migrated()), "migrated");
  EXPECT_EQ(outcome_word(failed_with(Code::kRefused)), "refused");
  EXPECT_EQ(outcome_word(failed_with(Code::kCancelled)), "cancelled");
  EXPECT_EQ(outcome_word(failed_with(Code::kIo)), "failed");
  registry::Outcome unconfirmed = failed_with(Code::kUnavailable);
  unconfirmed.mutable_report()->set_committed(true);
  EXPECT_EQ(outcome_word(unconfirmed), "unconfirmed");
  registry::Outcome recovering = failed_with(Code::kInternal);
  recovering.mutable_report()->set_recovering(true);
  EXPECT_EQ(outcome_word(recovering), "unconfirmed");
}

TEST(Metrics, MigrationIsCountedWithSecondsAndBytes) {
  Metrics metrics;
  metrics.ended(migrated());
  const std::string text = metrics.text({});
  EXPECT_THAT(text,
              HasSubstr(line("gcr_migrations_total{outcome=\"migrated\",role=\"source\"}", "1")));
  EXPECT_THAT(text, HasSubstr(line("gcr_migration_downtime_seconds_sum", "0.45")));
  EXPECT_THAT(text, HasSubstr(line("gcr_migration_duration_seconds_sum", "2.9")));
  EXPECT_THAT(text, HasSubstr(line("gcr_migration_processes_sum", "9")));
  EXPECT_THAT(text, HasSubstr(line("gcr_migration_processes_bucket{le=\"8\"}", "0")));
  EXPECT_THAT(text, HasSubstr(line("gcr_migration_processes_bucket{le=\"16\"}", "1")));
  EXPECT_THAT(text,
              HasSubstr(line("gcr_sent_bytes_total{kind=\"vram\",transport=\"tcp\"}", "1000")));
  EXPECT_THAT(text,
              HasSubstr(line("gcr_sent_bytes_total{kind=\"image\",transport=\"tcp\"}", "50")));
  EXPECT_THAT(text, HasSubstr(line("gcr_wire_bytes_total{transport=\"tcp\"}", "1100")));
  EXPECT_THAT(text, HasSubstr(line("gcr_reconnections_total{transport=\"tcp\"}", "2")));
  EXPECT_THAT(text,
              HasSubstr("gcr_migration_rate_bytes_per_second_sum{transport=\"tcp\"} 2000000000\n"));
}

TEST(Metrics, FailedMigrationHasNoDowntime) {
  Metrics metrics;
  registry::Outcome failed = failed_with(Code::kTimeout);
  failed.mutable_report()->set_total_ms(500);
  metrics.ended(failed);
  EXPECT_THAT(metrics.text({}), HasSubstr(line("gcr_migration_downtime_seconds_count", "0")));
}

TEST(Metrics, UnknownPhasesShareOneSeries) {
  Metrics metrics;
  registry::Outcome ended = outcome(journal::Began::DESTINATION);
  add_phase(ended, "criu restore", 250);
  add_phase(ended, "x\"} 1\nforged 1", 1);
  add_phase(ended, "another", 1);
  metrics.ended(ended);
  const std::string text = metrics.text({});
  EXPECT_THAT(text, HasSubstr(line("gcr_migration_phase_seconds_sum{phase=\"criu "
                                   "restore\",role=\"destination\"}",
                                   "0.25")));
  EXPECT_THAT(text,
              HasSubstr(line(
                  "gcr_migration_phase_seconds_count{phase=\"other\",role=\"destination\"}", "2")));
  EXPECT_THAT(text, Not(HasSubstr("forged")));
}

TEST(Metrics, RecoveryIsNotCountedAsAMigration) {
  Metrics metrics;
  registry::Outcome recovered = outcome(journal::Began::DESTINATION);
  recovered.set_recovered(true);
  recovered.mutable_report()->set_migrated(true);
  metrics.ended(recovered);
  const std::string text = metrics.text({});
  EXPECT_THAT(text, HasSubstr(line(
                        "gcr_recoveries_total{outcome=\"migrated\",role=\"destination\"}", "1")));
  EXPECT_THAT(text, HasSubstr(line(
                        "gcr_migrations_total{outcome=\"migrated\",role=\"destination\"}", "0")));
}

TEST(Metrics, JournalErrorsAddUp) {
  Metrics metrics;
  registry::Outcome ended = failed_with(Code::kIo);
  ended.set_journal_errors(2);
  metrics.ended(ended);
  metrics.journal_errors(1);
  EXPECT_THAT(metrics.text({}), HasSubstr(line("gcr_journal_errors_total", "3")));
}

TEST(Metrics, GaugesHaveTheCurrentValues) {
  Metrics metrics;
  metrics.text({.workers = 5, .outgoing = 2, .certificate_expiry = {{"agent", 1893456000}}});
  const std::string text = metrics.text({.workers = 1,
                                         .unauthenticated = 1,
                                         .incoming = 1,
                                         .certificate_expiry = {{"agent", 1924992000}}});
  EXPECT_THAT(text, HasSubstr(line("gcr_workers", "1")));
  EXPECT_THAT(text, HasSubstr(line("gcr_connections{state=\"unauthenticated\"}", "1")));
  EXPECT_THAT(text, HasSubstr(line("gcr_migrations_in_progress{role=\"source\"}", "0")));
  EXPECT_THAT(text, HasSubstr(line("gcr_migrations_in_progress{role=\"destination\"}", "1")));
  EXPECT_THAT(text,
              HasSubstr(line("gcr_certificate_expiry_timestamp_seconds{certificate=\"agent\"}",
                             "1924992000")));
}

}  // namespace
}  // namespace gcr::daemon
