#include "tests/cli/migrate_fixture.h"

namespace gcr::cli::test {

using control::ControlChannel;

asio::awaitable<void> say_event(ControlChannel& channel) {
  proto::Envelope message;
  message.mutable_event()->set_phase("switchover");
  message.mutable_event()->set_text("closing the gate\x1b[2J");
  const Status sent = co_await channel.send(message);
  EXPECT_TRUE(sent);
}

Play report(const proto::MigrateReport& what) {
  return [what](ControlChannel& channel) -> asio::awaitable<void> {
    co_await say_event(channel);
    proto::Envelope message;
    *message.mutable_migrate_report() = what;
    const Status sent = co_await channel.send(message);
    EXPECT_TRUE(sent);
  };
}

Play fail(const Error& error) {
  return [error](ControlChannel& channel) -> asio::awaitable<void> {
    proto::Envelope message;
    *message.mutable_failure() = control::to_failure(error);
    const Status sent = co_await channel.send(message);
    EXPECT_TRUE(sent);
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

}  // namespace gcr::cli::test
