// A suspend: the first steps of a migration (migrate-agent/migration/source), then VRAM goes into
// host memory while the driver checkpoints the control state. From the record Suspended on the job
// needs no worker: it stands still, frozen by its control group, and a keeper has the copy. Until
// then every failure leads back, as in a migration: VRAM is still there.
#include <fmt/format.h>

#include <algorithm>
#include <future>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/gpu/host_copy/host_copy.h"
#include "migrate-agent/linux/hostmem/memory_reservation.h"
#include "migrate-agent/migration/entry.h"
#include "migrate-agent/migration/source/course.h"
#include "src/base/log.h"
#include "src/base/random.h"

namespace gcr::migration {
namespace suspend {
namespace {

using source::Clock;
using source::Course;

struct Suspend {
  Course& course;
  std::unique_ptr<hostmem::MemoryReservation> memory{};
  std::optional<gpu::HostCopy> copy{};
  mover::VramDigests digests{};
  gpu::KeptCopy description{};             ///< of the copy
  std::optional<keeper::Keeper> keeper{};  ///< of the copy
};

/// What goes with CRIU's dump alone cannot be taken out of the driver otherwise.
Status check_control(const Course& c) {
  for (const preflight::GpuUser& user : c.subject.found->gpu_users) {
    const pid_t pid = c.subject.found->pids[user.member];
    if (!c.subject.found->host.driver->control(pid)->goes_with_dump()) continue;
    return Error(Code::kRefused,
                 fmt::format("process {} uses GPUs of AMD: only a dump by CRIU takes their control "
                             "state from the driver, so it cannot be suspended",
                             pid));
  }
  return {};
}

/// For whoever moves the job while it is suspended.
void note_members(Suspend& s) {
  const preflight::Examination& found = *s.course.subject.found;
  for (const preflight::GpuUser& user : found.gpu_users) {
    gpu::KeptMember& kept = *s.description.add_members();
    kept.set_pid(found.pids[user.member]);
    kept.set_door_tid(found.members[user.member].door_tid());
    kept.set_cuda_restore_tid(found.members[user.member].cuda_restore_tid());
  }
  *s.description.mutable_limits() = s.course.subject.limits;
  *s.description.mutable_gpus() = found.host.facts.gpus();
}

/// Else anybody's SIGCONT would let it run without its VRAM.
Status check_freezer(const Course& c) {
  if (c.subject.processes->group().freezes()) return {};
  return Error(Code::kRefused, "no control group can be frozen on this host");
}

/// Takes over what the job has allocated since the last look, and makes room for it.
Status take_buffers(Suspend& s) {
  Course& c = s.course;
  proto::BuffersRequest changes;
  GCR_TRY(source::follow_allocations(c, changes));
  const std::uint64_t missing = s.copy->missing_bytes(c.subject.job);
  if (missing == 0) return {};
  const hostmem::Memory memory =
      hostmem::needed_for_landing(c.run.worker.config.hugepages, missing);
  GCR_TRY(s.memory->add(memory));
  GCR_TRY(s.copy->make_room(c.subject.job));
  return s.memory->taken(memory);
}

/// The journal knows the keeper before it holds anything.
Status start_copy_keeper(Suspend& s) {
  Course& c = s.course;
  GCR_ASSIGN(s.keeper, keeper::Keeper::start_installed(c.run.worker.config.criu.reaper));
  journal::Record record;
  *record.mutable_keeper_started()->mutable_keeper() = s.keeper->id();
  record.mutable_keeper_started()->set_of_copy(true);
  return c.run.log->advance(commit::SourceEvent::kKeeperStarted, std::move(record));
}

/// All that takes time and can be done while the job runs.
Status prepare(Suspend& s) {
  Course& c = s.course;
  const worker::Phases::Timer timer(c.run.phases, "course", "prepare");
  c.run.console.tell("prepare", fmt::format("making room in host memory for {} buffers",
                                            c.subject.job.allocations().size()));
  const worker::Config& config = c.run.worker.config;
  const auto secret = random_bytes<32>();
  s.description.set_digest_key(secret.data(), secret.size());
  c.copying.vram.emplace(c.subject.driver, digest::DigestKey::expand(secret));
  s.copy.emplace(c.subject.driver, config.hugepages);
  GCR_ASSIGN(s.memory,
             hostmem::MemoryReservation::create(hostmem::reservations_in(config.runtime_dir)));
  GCR_TRY(take_buffers(s));
  GCR_TRY(source::start_keeper(c));
  GCR_TRY(start_copy_keeper(s));
  GCR_TRY(fault::point("source.prepared"));
  c.run.report.set_source_touched(true);
  GCR_TRY(source::note_detaching(c));
  return take_buffers(s);
}

Status copy_vram(Suspend& s) {
  Course& c = s.course;
  GCR_ASSIGN(s.digests,
             c.run.phases.time("vram", "digest", [&c] { return c.copying.vram->digest_now(); }));
  const auto began = Clock::now();
  GCR_TRY(c.run.phases.time("vram", "copy",
                            [&s, &c] { return s.copy->fill(c.subject.job, *c.copying.vram); }));
  proto::MigrateReport& report = c.run.report;
  report.mutable_suspension()->set_copy_ms(in_milliseconds(Clock::now() - began));
  report.set_buffers(c.copying.vram->count());
  report.set_vram_bytes(c.copying.vram->total_bytes());
  return {};
}

/// The mover holds VRAM, so it is copied while the job is taken apart.
Status stop(Suspend& s) {
  Course& c = s.course;
  GCR_TRY(source::hold_back(c));
  const worker::Phases::Timer timer(c.run.phases, "course", "standstill");
  const std::vector<pid_t> members = journal::pids_of(c.subject.members);
  GCR_TRY(take_buffers(s));
  auto copied = std::async(std::launch::async, [&s, &c, &members]() -> Status {
    GCR_TRY(copy_vram(s));
    return source::check_sharers(c, members);
  });
  const Status taken_apart = source::take_control_state(c);
  const Status saved = copied.get();
  GCR_TRY(taken_apart);
  GCR_TRY(saved);
  GCR_TRY(c.run.phases.time("process", "stop", [&c] { return c.subject.processes->stop(); }));
  return fault::point("source.suspend.copied");
}

/// From here on the job is suspended, whatever becomes of this worker.
Status decide(Suspend& s) {
  Course& c = s.course;
  GCR_TRY(c.run.worker.cancellation.check());
  if (c.subject.handle->is_ending()) {
    return Error(Code::kNotFound, "the process ended while it was suspended");
  }
  GCR_TRY(s.copy->hand_over(c.subject.job, s.digests, std::move(s.description), *s.keeper));
  GCR_TRY(fault::point("source.suspend.kept"));
  journal::Record record;
  record.mutable_suspended();
  GCR_TRY(c.run.log->advance(commit::SourceEvent::kSuspended, std::move(record)));
  proto::Suspension& report = *c.run.report.mutable_suspension();
  report.set_done(true);
  report.set_hugepages(s.copy->is_huge());
  report.set_standstill_ms(in_milliseconds(Clock::now() - *c.account.gate_closed_at));
  return {};
}

Status claim_and_examine(Suspend& s) {
  Course& c = s.course;
  GCR_TRY(migration::run_steps(c.run, c, {source::claim, source::examine}));
  GCR_TRY(check_control(c));
  note_members(s);
  return {};
}

Status begin(Suspend& s) {
  GCR_TRY(source::begin(s.course));
  return check_freezer(s.course);
}

/// What this does not come to is done by the recovery that follows on every suspend. The copy's
/// pages stay locked until the worker ends: to unlock them takes 14 ms per GiB (measured on an
/// H200).
Status release(Suspend& s) {
  Course& c = s.course;
  GCR_TRY(fault::point("source.suspend.decided"));
  const worker::Phases::Timer timer(c.run.phases, "vram", "release");
  c.copying.vram.reset();
  GCR_TRY(c.subject.keeper->end());
  return fault::point("source.suspend.released");
}

void run(Suspend& s) {
  Course& c = s.course;
  proto::MigrateReport& report = c.run.report;
  report.mutable_suspension()->set_resumed(false);
  Status done = worker::guarded([&] {
    return run_steps(c.run, s, {claim_and_examine, begin, prepare, stop, decide});
  });
  if (done) {
    const std::string note = s.copy->note();
    if (!note.empty()) report.add_notes(note);
    const Status released = worker::guarded([&] { return release(s); });
    if (!released) report.add_notes(released.error().message());
  } else if (done.error().code() == Code::kDataLoss && c.run.log) {
    report.set_recovering(true);  // the journal's content is unknown: as if killed here
  } else {
    done = source::give_up(c, reason_of(c.run, done.error()));
  }
  source::conclude(c, done);
  // A resume need not wait until the copy's pages are unlocked.
  if (done) c.run.log.reset();
}

}  // namespace
}  // namespace suspend

asio::awaitable<void> run_suspend(worker::WorkerContext& context,
                                  const proto::SuspendRequest& request) {
  proto::MigrateRequest order;
  order.set_pid(request.pid());
  Console console(context, order);
  const auto nowhere = [](const source::Course&) -> Result<std::unique_ptr<Target>> {
    return std::unique_ptr<Target>();
  };
  source::Course course{{context, console}, nowhere, std::move(order)};
  log_migration(course.run.migration);
  spdlog::info("suspends process {}", request.pid());
  suspend::Suspend steps{course};
  co_await run_with_console(context, console, [&steps] { suspend::run(steps); });
}

}  // namespace gcr::migration
