#include "migrate-agent/migration/source/course.h"

#include <fmt/chrono.h>

#include <asio/post.hpp>
#include <chrono>

#include "migrate-agent/commit/journal/text.h"
#include "migrate-agent/commit/states/outcome.h"
#include "migrate-agent/migration/entry.h"
#include "migrate-agent/migration/target/agent/agent_target.h"
#include "migrate-agent/migration/target/store/checkpoint_target.h"
#include "migrate-agent/process/slurm/step.h"
#include "src/base/log.h"

namespace gcr::migration {
namespace {

/// For people.
const std::string& destination_of(const proto::MigrateRequest& request) {
  return request.has_checkpoint() ? request.checkpoint().directory() : request.destination();
}

}  // namespace

namespace source {
namespace {

Status run_steps(Course& c, std::initializer_list<Status (*)(Course&)> steps) {
  for (const auto step : steps) {
    GCR_TRY(c.worker.cancellation.check());
    GCR_TRY(step(c));
  }
  return {};
}

Status run_to_switchover(Course& c) {
  return run_steps(c, {claim, agree, begin, prepare, copy, switch_over});
}

}  // namespace

Status run_to_vote(Course& c) {
  GCR_TRY(run_to_switchover(c));
  return run_steps(c, {restore, last_look});
}

namespace {

Status migrate(Course& c, const std::function<Status()>& send_all) {
  const auto& request = c.order.request;
  const bool goes_on = request.has_checkpoint() && !request.checkpoint().stop();
  const Status agreed = worker::guarded([&]() -> Status {
    GCR_TRY(send_all());
    return goes_on ? Status() : run_steps(c, {restore, last_look});
  });
  if (agreed) return goes_on ? go_on(c) : commit(c);
  // An interrupted wait only reports the interruption.
  const Status wanted = c.worker.cancellation.check();
  return give_up(c, wanted ? agreed.error() : wanted.error());
}

void complete_report(Course& c) {
  proto::MigrateReport& report = c.account.report;
  report.set_total_ms(c.account.phases.since_origin_ms(Clock::now()));
  report.set_downtime_limit_ms(c.console.limits().downtime_ms);
  for (proto::PhaseTime& phase : c.account.phases.list()) *report.add_phases() = std::move(phase);
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

journal::Began description(const Course& c) {
  const Subject& subject = c.subject;
  journal::Began began;
  began.set_migration_id(to_bytes(c.order.migration));
  began.set_role(journal::Began::SOURCE);
  began.set_peer(control::printable(destination_of(c.order.request)));
  if (c.target != nullptr) began.set_peer_name(c.target->common_name());
  *began.mutable_members() = subject.members;
  began.set_uid(subject.claimed.uid);
  began.set_gid(subject.claimed.gid);
  began.set_slurm_job(c.order.request.slurm_job());
  if (const auto step = slurm::step_of(c.order.request.pid())) began.set_slurm_left(step->job);
  if (c.order.request.has_checkpoint()) {
    began.set_store(c.order.request.checkpoint().directory());
    began.set_checkpoint(c.order.request.checkpoint().name());
  }
  began.set_ordered_by(c.worker.channel.peer().common_name);
  if (subject.suspended) began.set_suspension(to_bytes(subject.suspended->suspension));
  began.set_command(journal::short_command(subject.found && !subject.found->members.empty()
                                               ? subject.found->members.front().command()
                                               : subject.command));
  return began;
}

void run(Course& c) {
  run(c, [&c] { return run_to_switchover(c); });
}

void run(Course& c, const std::function<Status()>& send_all) {
  const Status migrated = migrate(c, send_all);
  c.account.report.set_migrated(migrated.has_value());
  proto::MigrateReport& report = c.account.report;
  const bool only_stored = report.committed() && c.order.request.has_checkpoint();
  if (only_stored || report.process_ended()) report.clear_suspended();
  conclude(c, migrated);
}

void conclude(Course& c, const Status& done) {
  proto::MigrateReport& report = c.account.report;
  report.set_migration_id(to_bytes(c.order.migration));
  if (!done) {
    report.set_code(std::string(to_string(done.error().code())));
    report.set_message(done.error().message());
    spdlog::error("process {} was not {}: {}", c.order.request.pid(),
                  report.has_suspension() ? "suspended" : "migrated", done.error().message());
  }
  complete_report(c);
  tell_ending(c.worker, c.console, description(c), report,
              c.account.log ? c.account.log->write_errors() : 0);
}

/// The daemon is told whether or not there is a journal.
void tell_ending(worker::WorkerContext& worker, Console& console, journal::Began migration,
                 const proto::MigrateReport& report, unsigned journal_errors) {
  asio::post(worker.io,
             [&daemon = worker.daemon,
              outcome = commit::ending_of(std::move(migration), report, journal_errors)] {
               daemon.report_outcome(outcome);
             });
  proto::Envelope envelope;
  *envelope.mutable_migrate_report() = report;
  console.tell(std::move(envelope));
}

FindTarget find_target(worker::WorkerContext& context) {
  return [&context](const Order& order, const Subject& subject) -> Result<std::unique_ptr<Target>> {
    if (order.request.has_checkpoint()) {
      return std::make_unique<CheckpointTarget>(
          context.config, order.request.checkpoint(), order.request.compression(), order.migration,
          store::Owner{subject.claimed.uid, subject.claimed.gid}, subject.members);
    }
    GCR_ASSIGN(auto agent, context.agent_at(order.request.destination()));
    return std::make_unique<AgentTarget>(
        context.io, std::move(agent), order.migration,
        [&context](const Error& lost) { context.cancellation.request(lost); });
  };
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

Order order_of(proto::MigrateRequest request) {
  if (request.has_checkpoint()) name(*request.mutable_checkpoint(), request.pid());
  Order order{std::move(request)};
  log_migration(order.migration);
  spdlog::info("moves process {} to {}", order.request.pid(),
               control::printable(destination_of(order.request)));
  return order;
}

}  // namespace source

asio::awaitable<void> run_source(worker::WorkerContext& context, proto::MigrateRequest request) {
  Console console(context, request);
  source::Course course{context, console, source::find_target(context),
                        source::order_of(std::move(request))};
  co_await run_with_console(context, console, [&course] { source::run(course); });
}

}  // namespace gcr::migration
