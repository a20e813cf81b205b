// A resume. While the job is stopped, VRAM is created, filled from the keeper's copy, verified, and
// given to a keeper. From the record Resuming on, the job is resumed as one that a dead worker has
// left (migrate-agent/migration/finish). A failure before that leaves it suspended.
#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/commit/journal/journal_files.h"
#include "migrate-agent/gpu/device/drivers/drivers.h"
#include "migrate-agent/linux/cgroups/devices.h"
#include "migrate-agent/migration/entry.h"
#include "migrate-agent/migration/finish/records.h"
#include "migrate-agent/migration/finish/source.h"
#include "migrate-agent/migration/source/course.h"
#include "migrate-agent/migration/suspend/places.h"
#include "migrate-agent/migration/suspend/suspended.h"
#include "src/base/log.h"

namespace gcr::migration {
namespace resume {
namespace {

using Clock = worker::Phases::Clock;

struct Resume {
  Run run;
  const proto::ResumeRequest& request;
  std::optional<gpu::HostCopy> copy{};
  gpu::HostCopy::Vram vram{};
  std::vector<device::GpuPair> gpus{};
  std::optional<keeper::Keeper> keeper{};  ///< keeper of the VRAM
};

Status claim_job(Resume& r) {
  GCR_ASSIGN(const journal::Entry entry, find_suspended(r.run.worker, r.request.pid()));
  r.run.migration = entry.migration;
  log_migration(entry.migration);
  r.run.began.set_migration_id(to_bytes(entry.migration));
  GCR_ASSIGN(r.run.log, take_suspended(r.run.worker, entry, r.request.pid()));
  r.run.began = r.run.log->journal().began();
  GCR_TRY(announce(r.run));
  return fault::point("source.resume.begun");
}

/// This host's GPUs; of a container's job, none that the container cannot open is allowed.
Result<std::vector<Place>> places_for(const Resume& r,
                                      const std::shared_ptr<const device::Driver>& driver) {
  GCR_ASSIGN(auto places, find_places(driver, r.run.worker.config));
  if (!r.run.began.has_container()) return places;
  GCR_ASSIGN(const auto hidden,
             cgroups::hidden_gpus(cgroups::hierarchies(), r.run.began.container().init().pid()));
  for (Place& place : places) place.allowed = place.allowed && !hidden.contains(place.gpu.uuid);
  return places;
}

/// Creates VRAM with the content of the copy, and verifies it.
Status load_vram(Resume& r) {
  const worker::Phases::Timer timer(r.run.phases, "course", "load");
  GCR_ASSIGN(r.copy, open_copy(r.run.log->journal().records(), r.request.pid()));
  r.run.report.set_vram_bytes(r.copy->total_bytes());
  r.run.report.set_buffers(r.copy->count());
  r.run.console.tell("load", fmt::format("{} of VRAM in {} buffers",
                                         format_bytes(r.copy->total_bytes()), r.copy->count()));
  GCR_ASSIGN(const auto driver, device::load_drivers(r.run.worker.config.sysfs));
  GCR_ASSIGN(const auto places, places_for(r, driver));
  GCR_ASSIGN(r.gpus, choose_places(r.copy->origins(), places, r.copy->bytes_by_gpu(),
                                   mover::pairs_of(r.request.device_map())));
  GCR_ASSIGN(r.vram, r.run.phases.time("vram", "create",
                                       [&] { return r.copy->create_vram(driver, r.gpus); }));
  GCR_TRY(r.run.worker.cancellation.check());
  const auto began = Clock::now();
  GCR_TRY(r.run.phases.time("vram", "copy", [&] { return r.copy->copy_to(r.vram); }));
  r.run.report.mutable_suspension()->set_copy_ms(in_milliseconds(Clock::now() - began));
  GCR_TRY(r.run.phases.time("vram", "verify", [&] { return r.copy->verify(r.vram); }));
  r.run.report.set_verified(true);
  return fault::point("source.resume.loaded");
}

/// Hands the VRAM to a keeper, named in the journal before: from here on it survives this worker.
Status hand_to_keeper(Resume& r) {
  GCR_ASSIGN(r.keeper, source::start_keeper(r.run));
  GCR_TRY(r.copy->hand_over_vram(r.vram, *r.keeper));
  return fault::point("source.resume.kept");
}

/// Writes Resuming, without pairs if every GPU maps to itself: the driver needs none then.
Status record_resuming(Resume& r) {
  GCR_TRY(r.run.worker.cancellation.check());
  journal::Record record;
  journal::Resuming& resuming = *record.mutable_resuming();
  const bool moves =
      std::ranges::any_of(r.gpus, [](const device::GpuPair& pair) { return pair.from != pair.to; });
  for (const device::GpuPair& pair : r.gpus) {
    if (!moves) break;
    journal::GpuMove& move = *resuming.add_gpus();
    move.set_from(to_bytes(pair.from));
    move.set_to(to_bytes(pair.to));
  }
  GCR_TRY(r.run.log->advance(commit::SourceEvent::kResuming, std::move(record)));
  r.run.report.set_source_touched(true);
  return fault::point("source.resume.decided");
}

/// Reports whether the job runs again or has ended, or that a recovery has to resume it.
void report_state(Resume& r, const Status& done) {
  proto::Suspension& report = *r.run.report.mutable_suspension();
  report.set_done(done.has_value());
  report.set_standstill_ms(r.run.phases.since_origin_ms(Clock::now()));
  if (done) {
    const auto* finished = r.run.log->journal().last(journal::Record::kFinished);
    r.run.report.set_process_ended(finished->finished().pid() == 0);
  } else {
    r.run.recovering = r.run.log && r.run.log->state() == commit::SourceState::kResuming;
  }
}

void resume(Resume& r) {
  r.run.report.mutable_suspension()->set_resumed(true);
  const Status done = worker::guarded([&]() -> Status {
    for (const auto step : {claim_job, load_vram, hand_to_keeper, record_resuming})
      GCR_TRY(first(r.run, [&] { return step(r); }));
    // From here on it cannot be cancelled.
    return r.run.phases.time("process", "bring back",
                             [&r] { return finish::run_again(*r.run.log, r.run.worker.config); });
  });
  const bool suspended = r.run.log && r.run.log->state() == commit::SourceState::kSuspended;
  if (!done && suspended && r.keeper) {
    const Status ended = r.keeper->end();
    if (!ended) {
      spdlog::warn("cannot end the keeper of the failed resume: {}", ended.error().message());
    }
  }
  report_state(r, done);
  conclude(r.run, done, fmt::format("resume of process {} failed", r.request.pid()));
}

}  // namespace
}  // namespace resume

asio::awaitable<void> run_resume(worker::WorkerContext& context,
                                 const proto::ResumeRequest& request) {
  Console console(context, {});
  resume::Resume course{{context, console}, request};
  course.run.began.set_role(journal::Began::SOURCE);
  spdlog::info("resuming process {}", request.pid());
  co_await console.run([&course] { resume::resume(course); });
}

}  // namespace gcr::migration
