// A migration, or a checkpoint, of a suspended job. The job is stopped already, so there are no
// rounds: VRAM is sent from the keeper's copy, concurrently with the dump. A failure before the
// commit leaves the job suspended as before (migrate-agent/migration/finish).
#include <fmt/format.h>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/migration/entry.h"
#include "migrate-agent/migration/source/course.h"
#include "migrate-agent/migration/suspend/suspended.h"

namespace gcr::migration {
namespace move {
namespace {

using source::Begun;
using source::Claimed;

/// A suspended job that only this course may use.
struct Taken {
  std::optional<commit::SourceLog> suspension;  ///< until the migration has a journal
  gpu::HostCopy copy;
  Claimed claimed;
};

/// The target is ready.
struct Ready {
  Begun& begun;
  const gpu::HostCopy& copy;
  source::Images images;
  mover::ChunkSender sender;
};

/// Claims the whole job; the request may name any of its processes.
Result<std::unique_ptr<Taken>> claim_job(source::Course& course) {
  auto& [run, find_target, request] = course;
  const pid_t named_pid = request.pid();
  GCR_ASSIGN(const worker::MovableProcess named,
             run.worker.permissions.check_process(named_pid, request.start_time()));
  run.report.set_start_time(named.start_time);
  GCR_ASSIGN(const journal::Entry entry, find_suspended(run.worker, named_pid));
  GCR_ASSIGN(auto suspension, take_suspended(run.worker, entry, named_pid));
  const auto& records = suspension.journal().records();
  GCR_ASSIGN(const journal::ProcessIds living, living_members(run.worker.permissions, records));
  request.set_pid(journal::root_pid(living));
  GCR_ASSIGN(const worker::MovableProcess root,
             run.worker.permissions.check_process(request.pid()));
  GCR_TRY(source::note_owner(course, request.pid(), root));
  GCR_ASSIGN(auto copy, open_copy(records, named_pid));
  Claimed claimed{course};
  GCR_ASSIGN(claimed.suspended, describe_suspended(records, living, copy));
  for (const journal::ProcessId& member : living) {
    GCR_ASSIGN(auto process, procfs::Process::open(member.pid(), member.start_time()));
    claimed.members.push_back({std::move(process)});
  }
  GCR_TRY(source::claim_for_target(claimed));
  return std::unique_ptr<Taken>(
      new Taken{std::move(suspension), std::move(copy), std::move(claimed)});
}

/// Examines the job. Members are identified by their index, so all of them must still live.
Result<preflight::Examination> examine_all(Claimed& claimed) {
  const std::size_t members = claimed.members.size();
  GCR_ASSIGN(auto found, source::examine(claimed));
  if (claimed.members.size() != members) {
    return Error(Code::kNotFound, "a process of the job ended while it was examined");
  }
  GCR_TRY(source::preflight(claimed, found));
  return found;
}

/// Begins the migration's journal, which from here on owns the suspended job. The suspension's own
/// journal is unlocked then, because a rollback needs it.
Result<std::unique_ptr<Begun>> begin(Taken& taken, preflight::Examination found) {
  auto begun = source::begin(taken.claimed, std::move(found));
  taken.suspension.reset();
  GCR_TRY(begun);
  (*begun)->processes.set_stopped();
  Run& run = (*begun)->course.run;
  run.console.downtime().begin();
  run.report.set_source_touched(true);
  run.report.set_gpu_processes(
      static_cast<std::uint32_t>(taken.claimed.suspended->gpu_members.size()));
  run.report.set_vram_bytes(taken.copy.total_bytes());
  run.report.set_buffers((*begun)->job.allocations().size());
  return begun;
}

Result<std::unique_ptr<Ready>> prepare(Begun& begun, const gpu::HostCopy& copy) {
  Run& run = begun.course.run;
  const auto& allocations = begun.job.allocations();
  const worker::Phases::Timer timer(run.phases, "course", "prepare");
  run.console.tell("prepare", fmt::format("preparing {} buffers at {}", allocations.size(),
                                          begun.claimed.target->name()));
  begun.course.request.set_image_mode(proto::IMAGE_MODE_STREAM);
  GCR_ASSIGN(source::Images images, source::prepare_images(begun));
  mover::ChunkSender sender(digest::DigestKey::expand(begun.key));
  source::Buffers buffers;
  for (const auto& [id, allocation] : allocations) {
    *buffers.Add() = gpu::to_message(allocation);
    sender.add(id, allocation.size_bytes);
  }
  GCR_ASSIGN(const PreparedTarget prepared, source::prepare_target(begun, std::move(buffers)));
  GCR_TRY(sender.assign(prepared.reply.regions()));
  auto ready = std::unique_ptr<Ready>(new Ready{begun, copy, std::move(images), std::move(sender)});
  GCR_TRY(ready->images.outgoing.prepare());
  GCR_TRY(fault::point("source.prepared"));
  return ready;
}

/// Sends VRAM from the copy. Content that differs from what was in VRAM ends the migration.
Status send_vram(Ready& r) {
  const auto key = digest::DigestKey::expand(r.begun.key);
  const auto source = [&](unsigned threads, const mover::ChunkSink& sink) {
    return r.copy.read(key, threads, sink);
  };
  GCR_ASSIGN(const std::uint64_t sent_bytes, r.sender.send(source, *r.begun.claimed.target));
  r.begun.course.run.report.set_sent_vram_bytes(sent_bytes);
  return {};
}

/// Sends VRAM and images concurrently.
Result<Sent> send(Ready& r) {
  Run& run = r.begun.course.run;
  Target& target = *r.begun.claimed.target;
  const worker::Phases::Timer timer(run.phases, "course", "send");
  run.console.tell("send", fmt::format("sending {} of VRAM", format_bytes(r.copy.total_bytes())));
  run.console.begin_copying(target.channel());
  Sent sent;
  GCR_TRY(send_both(
      target, [&] { return run.phases.time("vram", "send", [&] { return send_vram(r); }); },
      [&]() -> Status {
        GCR_TRY(source::open_image_sink(r.begun, r.images, 0));
        return source::send_images(r.begun, r.images, sent.request);
      }));
  add_digests(r.sender.digests(), sent.request);
  run.report.set_image_mode_reason("the job was stopped already");
  GCR_TRY(fault::point("source.flushed"));
  GCR_TRY(run.worker.cancellation.check());
  return sent;
}

void run(source::Course& course) {
  Run& run = course.run;
  auto taken = first(run, [&course] { return claim_job(course); });
  auto found = then(run, taken, [](auto& job) { return examine_all(job->claimed); });
  auto begun = then(run, found, [&taken](preflight::Examination& examined) {
    return begin(**taken, std::move(examined));
  });
  auto ready = then(run, begun, [&taken](auto& job) { return prepare(*job, (*taken)->copy); });
  auto sent = then(run, ready, [](auto& prepared) { return send(*prepared); });
  Claimed* const claimed = taken ? &(*taken)->claimed : nullptr;
  const auto vote =
      source::finish(course, {claimed, begun ? begun->get() : nullptr, nullptr}, sent);
  if (ready) source::report_wire(run, *claimed->target);
  const bool ended = !run.committed() && claimed != nullptr && claimed->root().has_ended();
  const bool stays_here = !run.committed() && !ended;
  run.report.set_suspended(stays_here || (run.committed() && !course.request.has_checkpoint()));
  run.report.set_migrated(vote.has_value());
  conclude(run, vote ? Status() : vote.error(),
           fmt::format("migration of process {} failed", course.request.pid()), stays_here);
  if (claimed != nullptr) claimed->end_target();  // its channel reads the copy
}

}  // namespace
}  // namespace move

bool is_suspended(const worker::WorkerContext& context, pid_t pid) {
  return find_suspended(context, pid).has_value();
}

asio::awaitable<void> run_suspended_source(worker::WorkerContext& context,
                                           proto::MigrateRequest request) {
  Console console(context, request);
  source::Course course{{context, console}, source::find_target, std::move(request)};
  source::introduce(course);
  co_await console.run([&course] { move::run(course); });
}

Result<proto::Envelope> run_suspended_check(worker::WorkerContext& context,
                                            const proto::MigrateRequest& request) {
  GCR_ASSIGN(const journal::Entry entry, find_suspended(context, request.pid()));
  GCR_ASSIGN(const journal::Contents contents, journal::peek(entry.path));
  GCR_ASSIGN(const auto members, living_members(context.permissions, contents.records));
  GCR_ASSIGN(const gpu::HostCopy copy, open_copy(contents.records, request.pid()));
  GCR_ASSIGN(const preflight::SuspendedJob job,
             describe_suspended(contents.records, members, copy));
  return source::check(context, request, journal::pids_of(members), &job);
}

}  // namespace gcr::migration
