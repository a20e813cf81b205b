#include "tests/src/cli/migrate_fixture.h"

#include <gmock/gmock.h>

#include <algorithm>

namespace gcr::cli::test {

using control::ControlChannel;

std::string example_id_bytes() {
  const Uuid id = Uuid::parse(kExampleId).value();
  return {id.bytes.begin(), id.bytes.end()};
}

proto::Progress example_progress() {
  proto::Progress progress;
  progress.set_phase("precopy");
  progress.set_round(3);
  progress.set_elapsed_ms(12'500);
  progress.set_vram_bytes(8ULL << 30);
  progress.set_sent_bytes(9ULL << 30);
  progress.set_round_bytes(1ULL << 30);
  progress.set_remaining_bytes(512ULL << 20);
  progress.set_rate_bytes_per_s(1.25e9);
  progress.set_dirty_rate_bytes_per_s(3.1e8);
  progress.set_expected_downtime_ms(420);
  progress.set_time_left_ms(3'100);
  progress.set_throttle(0.2);
  progress.set_downtime_limit_ms(300);
  return progress;
}

asio::awaitable<void> send_message(ControlChannel& channel, proto::Envelope message) {
  const Status sent = co_await channel.send(message);
  EXPECT_TRUE(sent);
}

asio::awaitable<void> send_started(ControlChannel& channel) {
  proto::Envelope message;
  message.mutable_started()->set_migration_id(example_id_bytes());
  co_await send_message(channel, std::move(message));
}

asio::awaitable<void> send_progress(ControlChannel& channel, proto::Progress progress) {
  proto::Envelope message;
  *message.mutable_progress() = std::move(progress);
  co_await send_message(channel, std::move(message));
}

asio::awaitable<void> send_report(ControlChannel& channel, proto::MigrateReport report) {
  proto::Envelope message;
  *message.mutable_migrate_report() = std::move(report);
  co_await send_message(channel, std::move(message));
}

asio::awaitable<void> send_event(ControlChannel& channel) {
  proto::Envelope message;
  message.mutable_event()->set_phase("switchover");
  message.mutable_event()->set_text("closing the gate\x1b[2J");
  co_await send_message(channel, std::move(message));
}

Play report(const proto::MigrateReport& what) {
  return [what](ControlChannel& channel) -> asio::awaitable<void> {
    co_await send_event(channel);
    co_await send_report(channel, what);
  };
}

Play fail(const Error& error) {
  return [error](ControlChannel& channel) -> asio::awaitable<void> {
    proto::Envelope message;
    *message.mutable_failure() = control::to_failure(error);
    co_await send_message(channel, std::move(message));
  };
}

void add_phase(proto::MigrateReport& report, const PhaseFields& fields) {
  proto::PhaseTime& phase = *report.add_phases();
  phase.set_name(fields.name);
  phase.set_host(fields.host);
  phase.set_track(fields.track);
  phase.set_start_ms(fields.start_ms);
  phase.set_duration_ms(fields.duration_ms);
}

proto::Round& add_round(proto::MigrateReport& report, unsigned number, double start_ms,
                        double duration_ms) {
  proto::Round& round = *report.add_rounds();
  round.set_number(number);
  round.set_start_ms(start_ms);
  round.set_digest_ms(2);
  round.set_duration_ms(duration_ms);
  round.set_dirty_chunks(32);
  round.set_zero_chunks(4);
  round.set_sent_bytes(64 << 20);
  round.set_rate_bytes_per_s(1.5e9);
  round.set_throttle(0.25);
  return round;
}

proto::MigrateReport failed_report(Code code, bool touched, bool committed) {
  proto::MigrateReport report;
  report.set_source_touched(touched);
  report.set_committed(committed);
  report.set_code(std::string(to_string(code)));
  report.set_message("the reason");
  return report;
}

void expect_one_error(const Finished& finished, int exit_status, const std::string& says) {
  EXPECT_EQ(finished.exit_status, exit_status) << finished.out << finished.err;
  EXPECT_EQ(std::ranges::count(finished.err, '\n'), 1) << finished.err;
  EXPECT_THAT(finished.err, testing::HasSubstr(says));
  for (const char* success : {"migrated pid=", "checkpointed name=", "restored pid="}) {
    EXPECT_THAT(finished.out, testing::Not(testing::HasSubstr(success)));
  }
}

}  // namespace gcr::cli::test
