// A suspend: the first steps of a migration (migrate-agent/migration/source); then VRAM is copied
// into host memory while the driver checkpoints the control state. From the record Suspended on the
// job needs no worker: its control group is frozen, and a keeper holds the copy. Every failure
// before that record resumes the job, as in a migration, because VRAM still exists.
#include <fmt/format.h>

#include <future>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/gpu/host_copy/host_copy.h"
#include "migrate-agent/linux/hostmem/memory_reservation.h"
#include "migrate-agent/migration/entry.h"
#include "migrate-agent/migration/finish/records.h"
#include "migrate-agent/migration/source/course.h"
#include "src/base/log.h"

namespace gcr::migration {
namespace suspend {
namespace {

struct Suspend {
  source::Begun& begun;
  std::unique_ptr<source::TakenVram> vram;
  std::unique_ptr<hostmem::MemoryReservation> memory;
  gpu::HostCopy copy;
  gpu::KeptCopy description;  ///< description of the copy
  keeper::Keeper keeper;      ///< keeper of the copy
  mover::VramDigests digests{};
};

/// Checks that the driver can release control state without a dump, which AMD's cannot.
Status check_control(const preflight::Examination& found) {
  for (const preflight::Member& member : found.members) {
    if (!member.access || !found.host.driver->control(member.pid)->goes_with_dump()) continue;
    return Error(Code::kRefused,
                 fmt::format("process {} uses AMD GPUs: only a dump by CRIU takes their control "
                             "state from the driver, so it cannot be suspended",
                             member.pid));
  }
  return {};
}

/// Describes the job for a later migration of it while it is suspended.
gpu::KeptCopy describe(const preflight::Examination& found) {
  gpu::KeptCopy description;
  for (const preflight::Member& member : found.members) {
    if (!member.access) continue;
    gpu::KeptMember& kept = *description.add_members();
    kept.set_pid(member.pid);
    kept.set_door_tid(member.facts.door_tid());
    kept.set_cuda_restore_tid(member.facts.cuda_restore_tid());
  }
  *description.mutable_limits() = found.members.front().facts.limits();
  *description.mutable_gpus() = found.host.facts.gpus();
  return description;
}

/// Takes over the job's new allocations, and allocates host memory for them.
Status take_buffers(Suspend& s) {
  GCR_TRY(source::follow_allocations(s.begun, *s.vram));
  const std::uint64_t missing = s.copy.missing_bytes(s.begun.job);
  if (missing == 0) return {};
  const hostmem::Memory memory =
      hostmem::needed_for_landing(s.begun.course.run.worker.config.hugepages, missing);
  GCR_TRY(s.memory->add(memory));
  GCR_TRY(s.copy.make_room(s.begun.job));
  return s.memory->taken(memory);
}

/// Takes all slow steps that are possible while the job runs.
Result<std::unique_ptr<Suspend>> prepare(source::Begun& begun, gpu::KeptCopy description) {
  Run& run = begun.course.run;
  const worker::Config& config = run.worker.config;
  const worker::Phases::Timer timer(run.phases, "course", "prepare");
  GCR_TRY(finish::check_freezer(begun.processes.group()));
  run.console.tell("prepare", fmt::format("making room in host memory for {} buffers",
                                          begun.job.allocations().size()));
  GCR_ASSIGN(auto memory,
             hostmem::MemoryReservation::create(hostmem::reservations_in(config.runtime_dir)));
  GCR_ASSIGN(auto vram, source::take_vram(begun));
  GCR_ASSIGN(keeper::Keeper keeper, source::start_keeper(run, true));
  auto s = std::unique_ptr<Suspend>(new Suspend{begun, std::move(vram), std::move(memory),
                                                gpu::HostCopy(begun.driver, config.hugepages),
                                                std::move(description), std::move(keeper)});
  GCR_TRY(take_buffers(*s));
  GCR_TRY(fault::point("source.prepared"));
  run.report.set_source_touched(true);
  GCR_TRY(source::note_detaching(begun, *s->vram));
  GCR_TRY(take_buffers(*s));
  return s;
}

Status copy_vram(Suspend& s) {
  Run& run = s.begun.course.run;
  mover::OutgoingVram& vram = s.vram->outgoing;
  GCR_ASSIGN(s.digests, run.phases.time("vram", "digest", [&vram] { return vram.digest_now(); }));
  const auto began = source::Clock::now();
  GCR_TRY(run.phases.time("vram", "copy", [&] { return s.copy.fill(s.begun.job, vram); }));
  run.report.mutable_suspension()->set_copy_ms(in_milliseconds(source::Clock::now() - began));
  run.report.set_buffers(vram.count());
  run.report.set_vram_bytes(vram.total_bytes());
  return {};
}

/// Stops the job. The mover holds the VRAM, so it is copied while the job is taken apart.
Status stop(Suspend& s) {
  Run& run = s.begun.course.run;
  GCR_TRY(source::close_gate(s.begun));
  const worker::Phases::Timer timer(run.phases, "course", "standstill");
  const std::vector<pid_t> members = pids_of(s.begun.claimed.members);
  GCR_TRY(take_buffers(s));
  auto copied = std::async(std::launch::async, [&s, &members]() -> Status {
    GCR_TRY(copy_vram(s));
    return source::check_sharers(s.begun, members);
  });
  const Status taken_apart = source::take_control_state(s.begun, *s.vram);
  const Status saved = copied.get();
  GCR_TRY(taken_apart);
  GCR_TRY(saved);
  GCR_TRY(run.phases.time("process", "stop", [&s] { return s.begun.processes.stop(); }));
  return fault::point("source.suspend.copied");
}

/// Writes Suspended. Afterwards the job is suspended, even if this worker dies.
Status record_suspended(Suspend& s) {
  Run& run = s.begun.course.run;
  GCR_TRY(run.worker.cancellation.check());
  if (s.begun.claimed.root().is_ending()) {
    return Error(Code::kNotFound, "the process ended during the suspend");
  }
  s.description.set_digest_key(s.begun.key.data(), s.begun.key.size());
  GCR_TRY(s.copy.hand_over(s.begun.job, s.digests, std::move(s.description), s.keeper));
  GCR_TRY(fault::point("source.suspend.kept"));
  journal::Record record;
  record.mutable_suspended();
  GCR_TRY(run.log->advance(commit::SourceEvent::kSuspended, std::move(record)));
  proto::Suspension& report = *run.report.mutable_suspension();
  report.set_done(true);
  report.set_hugepages(s.copy.is_huge());
  report.set_standstill_ms(in_milliseconds(run.console.downtime().current()));
  return {};
}

/// Releases the VRAM. A recovery runs after every suspend and finishes the steps that this function
/// could not take. The copy's pages stay locked until the worker ends, because unlocking them takes
/// 14 ms per GiB (measured on an H200).
Status release_vram(Suspend& s) {
  GCR_TRY(fault::point("source.suspend.decided"));
  const worker::Phases::Timer timer(s.begun.course.run.phases, "vram", "release");
  keeper::Keeper keeper = std::move(s.vram->keeper);
  s.vram.reset();
  GCR_TRY(keeper.end());
  return fault::point("source.suspend.released");
}

void run(source::Course& course) {
  Run& run = course.run;
  run.report.mutable_suspension()->set_resumed(false);
  gpu::KeptCopy description;
  auto claimed = first(run, [&course] { return source::claim(course); });
  auto begun =
      then(run, claimed, [&](source::Claimed& job) -> Result<std::unique_ptr<source::Begun>> {
        GCR_ASSIGN(auto found, source::examine(job));
        GCR_TRY(check_control(found));
        description = describe(found);
        return source::begin(job, std::move(found));
      });
  auto prepared = then(run, begun, [&](auto& job) { return prepare(*job, description); });
  Status done = then(run, prepared, [](auto& s) -> Status {
    GCR_TRY(stop(*s));
    return record_suspended(*s);
  });
  if (done) {
    const std::string note = (*prepared)->copy.note();
    if (!note.empty()) run.report.add_notes(note);
    const Status released = worker::guarded([&] { return release_vram(**prepared); });
    if (!released) run.report.add_notes(released.error().message());
  } else if (done.error().code() == Code::kDataLoss && run.log) {
    run.recovering = true;  // the journal's content is unknown, so a recovery reads it again
  } else {
    done = source::give_up(course,
                           {claimed ? &*claimed : nullptr, begun ? begun->get() : nullptr,
                            prepared ? (*prepared)->vram.get() : nullptr},
                           reason_of(run, done.error()));
  }
  conclude(run, done, fmt::format("suspend of process {} failed", course.request.pid()));
  // A resume need not wait until the copy's pages are unlocked.
  if (done) run.log.reset();
}

}  // namespace
}  // namespace suspend

asio::awaitable<void> run_suspend(worker::WorkerContext& context,
                                  const proto::SuspendRequest& request) {
  proto::MigrateRequest order;
  order.set_pid(request.pid());
  Console console(context, order);
  source::Course course{{context, console}, {}, std::move(order)};
  introduce(course.run);
  spdlog::info("suspending process {}", request.pid());
  co_await console.run([&course] { suspend::run(course); });
}

}  // namespace gcr::migration
