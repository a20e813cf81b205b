#include "migrate-agent/migration/source/course.h"

#include <fmt/chrono.h>

#include <chrono>

#include "migrate-agent/commit/journal/text.h"
#include "migrate-agent/migration/entry.h"
#include "migrate-agent/migration/target/agent/agent_target.h"
#include "migrate-agent/migration/target/store/checkpoint_target.h"
#include "migrate-agent/process/slurm/step.h"
#include "src/base/log.h"

namespace gcr::migration::source {
namespace {

/// For people.
const std::string& destination_of(const proto::MigrateRequest& request) {
  return request.has_checkpoint() ? request.checkpoint().directory() : request.destination();
}

Status run_to_switchover(Course& c) {
  return run_steps(c.run, c, {claim, agree, begin, prepare, copy, switch_over});
}

Status migrated(Course& c, const std::function<Status()>& send_all) {
  const bool goes_on = c.request.has_checkpoint() && !c.request.checkpoint().stop();
  const Status agreed = worker::guarded([&]() -> Status {
    GCR_TRY(send_all());
    return goes_on ? Status() : run_steps(c.run, c, {restore, last_look});
  });
  if (agreed) return goes_on ? go_on(c) : commit(c);
  return give_up(c, reason_of(c.run, agreed.error()));
}

void report_sending(Course& c) {
  proto::MigrateReport& report = c.run.report;
  report.set_downtime_limit_ms(c.run.console.limits().downtime_ms);
  if (c.copying.precopy == std::nullopt && c.copying.digests.empty()) return;
  const transport::Statistics statistics = c.target->channel().statistics();
  report.set_wire_bytes(statistics.wire_bytes);
  report.set_reconnections(statistics.reconnections);
  if (!c.copying.precopy) return;
  for (proto::Round& round : c.copying.precopy->rounds()) {
    report.set_sent_vram_bytes(report.sent_vram_bytes() + round.sent_bytes());
    *report.add_rounds() = std::move(round);
  }
}

}  // namespace

Status run_to_vote(Course& c) {
  GCR_TRY(run_to_switchover(c));
  return run_steps(c.run, c, {restore, last_look});
}

journal::Began description(const Course& c) {
  const Subject& subject = c.subject;
  journal::Began began;
  began.set_migration_id(to_bytes(c.run.migration));
  began.set_role(journal::Began::SOURCE);
  began.set_peer(control::printable(destination_of(c.request)));
  if (c.target != nullptr) began.set_peer_name(c.target->common_name());
  *began.mutable_members() = subject.members;
  began.set_uid(subject.claimed.uid);
  began.set_gid(subject.claimed.gid);
  began.set_slurm_job(c.request.slurm_job());
  if (const auto step = slurm::step_of(c.request.pid())) began.set_slurm_left(step->job);
  if (c.request.has_checkpoint()) {
    began.set_store(c.request.checkpoint().directory());
    began.set_checkpoint(c.request.checkpoint().name());
  }
  began.set_ordered_by(c.run.worker.channel.peer().common_name);
  if (subject.suspended) began.set_suspension(to_bytes(subject.suspended->suspension));
  began.set_command(journal::short_command(subject.found && !subject.found->members.empty()
                                               ? subject.found->members.front().command()
                                               : subject.command));
  return began;
}

void migrate(Course& c) {
  migrate(c, [&c] { return run_to_switchover(c); });
}

void migrate(Course& c, const std::function<Status()>& send_all) {
  const Status done = migrated(c, send_all);
  proto::MigrateReport& report = c.run.report;
  report.set_migrated(done.has_value());
  const bool only_stored = report.committed() && c.request.has_checkpoint();
  if (only_stored || report.process_ended()) report.clear_suspended();
  conclude(c, done);
}

void conclude(Course& c, const Status& done) {
  c.run.report.set_migration_id(to_bytes(c.run.migration));
  report_sending(c);
  migration::conclude(c.run, description(c), done,
                      fmt::format("process {} was not {}", c.request.pid(),
                                  c.run.report.has_suspension() ? "suspended" : "migrated"));
}

Result<std::unique_ptr<Target>> find_target(const Course& c) {
  worker::WorkerContext& worker = c.run.worker;
  if (c.request.has_checkpoint()) {
    return std::make_unique<CheckpointTarget>(
        worker.config, c.request.checkpoint(), c.request.compression(), c.run.migration,
        store::Owner{c.subject.claimed.uid, c.subject.claimed.gid}, c.subject.members);
  }
  GCR_ASSIGN(auto agent, worker.agent_at(c.request.destination()));
  return std::make_unique<AgentTarget>(
      worker.io, std::move(agent), c.run.migration,
      [&worker](const Error& lost) { worker.cancellation.request(lost); });
}

namespace {

/// A checkpoint that was given no name is called after the time and the process: those of a series,
/// and of several jobs at once, have different ones.
void name(proto::CheckpointOrder& order, std::int64_t pid) {
  if (!order.name().empty()) return;
  const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  order.set_name(
      fmt::format("{:%Y-%m-%dT%H-%M-%S}.{:03}-{}", seconds, (now - seconds).count(), pid));
}

}  // namespace

void introduce(Course& c) {
  if (c.request.has_checkpoint()) name(*c.request.mutable_checkpoint(), c.request.pid());
  log_migration(c.run.migration);
  spdlog::info("moves process {} to {}", c.request.pid(),
               control::printable(destination_of(c.request)));
}

}  // namespace gcr::migration::source

namespace gcr::migration {

asio::awaitable<void> run_source(worker::WorkerContext& context, proto::MigrateRequest request) {
  Console console(context, request);
  source::Course course{{context, console}, source::find_target, std::move(request)};
  source::introduce(course);
  co_await run_with_console(context, console, [&course] { source::migrate(course); });
}

}  // namespace gcr::migration
