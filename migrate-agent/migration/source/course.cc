#include "migrate-agent/migration/source/course.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <chrono>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/migration/engine/downtime_history.h"
#include "migrate-agent/migration/entry.h"
#include "migrate-agent/migration/target/agent/agent_target.h"
#include "migrate-agent/migration/target/store/checkpoint_target.h"
#include "src/base/log.h"
#include "src/base/units.h"

namespace gcr::migration::source {
namespace {

void report_sending(Run& run, Prepared& p) {
  report_wire(run, *p.begun.claimed.target);
  for (const proto::Round& round : p.precopy.rounds()) {
    run.report.set_sent_vram_bytes(run.report.sent_vram_bytes() + round.sent_bytes());
    *run.report.add_rounds() = round;
  }
}

/// Records the times for later estimates; not for a job with a member without the preload library,
/// whose downtime is computed from known amounts.
void remember(const Prepared& p, const Vote& vote) {
  if (p.begun.driver_alone) return;
  Run& run = p.begun.course.run;
  const double closed_ms = in_milliseconds(run.console.downtime().current());
  const double control_ms = in_milliseconds(p.control_took);
  const double overlapped_ms = std::max(control_ms, in_milliseconds(p.last_round_took));
  const Status remembered = remember_downtime(
      run.worker.config.state_dir, p.kind, vote.reply.prefilled(),
      {.control_ms = control_ms, .rest_ms = std::max(0.0, closed_ms - overlapped_ms)});
  if (!remembered) {
    spdlog::warn("cannot record the downtime for later estimates: {}",
                 remembered.error().message());
  }
}

/// Names a checkpoint that has no name after the time and the process, so that names differ within
/// a series and between concurrent jobs.
void name(proto::CheckpointOrder& order, std::int64_t pid) {
  if (!order.name().empty()) return;
  const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  order.set_name(
      fmt::format("{:%Y-%m-%dT%H-%M-%S}.{:03}-{}", seconds, (now - seconds).count(), pid));
}

}  // namespace

Result<std::unique_ptr<Target>> find_target(const Claimed& claimed) {
  auto& [run, find_target, request] = claimed.course;
  worker::WorkerContext& worker = run.worker;
  if (request.has_checkpoint()) {
    return std::make_unique<CheckpointTarget>(
        worker.config, request.checkpoint(), request.compression(), run.migration,
        store::Owner{run.began.uid(), run.began.gid()}, ids_of(claimed.members));
  }
  GCR_ASSIGN(auto agent, worker.agent_at(request.destination()));
  return std::make_unique<AgentTarget>(
      worker.io, std::move(agent), run.migration,
      [&worker](const Error& lost) { worker.cancellation.request(lost); });
}

void introduce(Course& course) {
  auto& [run, find_target, request] = course;
  migration::introduce(run);
  std::string destination = request.destination();
  if (request.has_checkpoint()) {
    name(*request.mutable_checkpoint(), request.pid());
    destination = request.checkpoint().directory();
    run.began.set_store(destination);
    run.began.set_checkpoint(request.checkpoint().name());
  }
  run.began.set_peer(control::printable(destination));
  spdlog::info("migrating process {} to {}", request.pid(), run.began.peer());
}

void report_wire(Run& run, Target& target) {
  const transport::Statistics statistics = target.channel().statistics();
  run.report.set_wire_bytes(statistics.wire_bytes);
  run.report.set_reconnections(statistics.reconnections);
}

Result<Vote> finish(Course& course, const Reached& reached, Result<Sent>& sent) {
  Run& run = course.run;
  const proto::MigrateRequest& request = course.request;
  run.report.set_downtime_limit_ms(run.console.limits().downtime_ms);
  if (sent && request.has_checkpoint() && !request.checkpoint().stop()) {
    return resume_and_complete(*reached.begun, reached.vram, *sent);
  }
  auto vote = then(run, sent, [&](const Sent& everything) -> Result<Vote> {
    GCR_TRY(await_vote(run));
    GCR_TRY(fault::point("source.awaiting"));
    GCR_ASSIGN(Vote given, ask_for_vote(*reached.claimed, everything));
    GCR_TRY(check_still_stopped(*reached.claimed));
    return given;
  });
  if (!vote) return give_up(course, reached, reason_of(run, vote.error()));
  GCR_TRY(commit(*reached.begun, reached.vram, *vote));
  return vote;
}

void migrate(Course& course) {
  Run& run = course.run;
  auto claimed = first(run, [&course] { return claim(course); });
  auto found = then(run, claimed, agree);
  auto begun = then(run, found, [&claimed](preflight::Examination& examined) {
    return begin(*claimed, std::move(examined));
  });
  auto prepared = then(run, begun, [](auto& job) { return prepare(*job); });
  auto sent = then(run, prepared, [](auto& ready) -> Result<Sent> {
    GCR_TRY(copy(*ready));
    return switch_over(*ready);
  });
  const auto vote = finish(course,
                           {claimed ? &*claimed : nullptr, begun ? begun->get() : nullptr,
                            prepared ? (*prepared)->vram.get() : nullptr},
                           sent);
  if (vote && !course.request.has_checkpoint()) remember(**prepared, *vote);
  if (prepared) report_sending(run, **prepared);
  run.report.set_migrated(vote.has_value());
  conclude(run, vote ? Status() : vote.error(),
           fmt::format("migration of process {} failed", course.request.pid()));
}

}  // namespace gcr::migration::source

namespace gcr::migration {

asio::awaitable<void> run_source(worker::WorkerContext& context, proto::MigrateRequest request) {
  Console console(context, request);
  source::Course course{{context, console}, source::find_target, std::move(request)};
  source::introduce(course);
  co_await console.run([&course] { source::migrate(course); });
}

}  // namespace gcr::migration
