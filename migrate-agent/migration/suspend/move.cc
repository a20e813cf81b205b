// A migration, or a checkpoint, of a job that is suspended. It stands still already, so there are
// no rounds: VRAM comes from the keeper's copy, beside the dump. Until the commit a failure leaves
// the job suspended as before (migrate-agent/migration/finish).
#include <fmt/format.h>

#include <future>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/migration/entry.h"
#include "migrate-agent/migration/source/check.h"
#include "migrate-agent/migration/source/course.h"
#include "migrate-agent/migration/suspend/suspended.h"

namespace gcr::migration {
namespace move {
namespace {

using source::Course;

struct Move {
  Course& course;
  std::optional<commit::SourceLog> suspension{};  ///< until the migration has a journal
  std::optional<gpu::HostCopy> copy{};
  source::DigestSecret key{};
  std::optional<mover::ChunkSender> sender{};
};

/// The job moves as a whole, whichever of its processes was named.
Status take_members(Move& m) {
  Course& c = m.course;
  GCR_ASSIGN(c.subject.members,
             living_members(c.run.worker.permissions, m.suspension->journal().records()));
  c.request.set_pid(journal::root_pid(c.subject.members));
  GCR_ASSIGN(c.subject.claimed, c.run.worker.permissions.check_process(c.request.pid()));
  return {};
}

Status take(Move& m) {
  Course& c = m.course;
  const pid_t pid = c.request.pid();
  GCR_ASSIGN(const worker::MovableProcess named,
             c.run.worker.permissions.check_process(pid, c.request.start_time()));
  c.run.report.set_start_time(named.start_time);
  GCR_ASSIGN(const journal::Entry entry, find_suspended(c.run.worker, pid));
  GCR_ASSIGN(m.suspension, take_suspended(c.run.worker, entry, pid));
  GCR_TRY(take_members(m));
  const auto& records = m.suspension->journal().records();
  GCR_ASSIGN(m.copy, open_copy(records, pid));
  GCR_ASSIGN(c.subject.suspended, describe_suspended(records, c.subject.members, *m.copy));
  return source::claim_for_target(c);
}

/// Members are known by their places.
Status examine(Move& m) {
  Course& c = m.course;
  const int members = c.subject.members.size();
  GCR_TRY(source::examine(c));
  if (c.subject.members.size() == members) return {};
  return Error(Code::kNotFound, "a process of the job ended while it was examined");
}

Status preflight(Move& m) { return source::preflight(m.course); }

/// The journal says from here on that the suspended job is this migration's. Its own journal is
/// free then: an undoing needs it.
Status begin(Move& m) {
  Course& c = m.course;
  const Status begun = source::begin(c);
  m.suspension.reset();
  GCR_TRY(begun);
  c.subject.processes->set_stopped();
  c.account.gate_closed_at = source::Clock::now();
  proto::MigrateReport& report = c.run.report;
  report.set_source_touched(true);
  report.set_gpu_processes(static_cast<std::uint32_t>(c.subject.suspended->gpu_members.size()));
  report.set_vram_bytes(m.copy->total_bytes());
  report.set_buffers(c.subject.job.allocations().size());
  return {};
}

Status prepare(Move& m) {
  Course& c = m.course;
  const worker::Phases::Timer timer(c.run.phases, "course", "prepare");
  c.run.console.tell("prepare", fmt::format("preparing {} buffers at {}",
                                            c.subject.job.allocations().size(), c.target->name()));
  m.key = c.target->digest_key();
  m.sender.emplace(digest::DigestKey::expand(m.key));
  c.request.set_image_mode(proto::IMAGE_MODE_STREAM);
  GCR_TRY(source::prepare_images(c));
  source::Buffers buffers;
  for (const auto& [id, allocation] : c.subject.job.allocations()) {
    *buffers.Add() = gpu::to_message(allocation);
    m.sender->add(id, allocation.size_bytes);
  }
  GCR_ASSIGN(const Prepared prepared, source::prepare_target(c, m.key, std::move(buffers)));
  GCR_TRY(m.sender->assign(prepared.reply.regions()));
  GCR_TRY(c.copying.images->prepare());
  return fault::point("source.prepared");
}

/// What differs from what was in VRAM ends the migration.
Status send_vram(Move& m) {
  Course& c = m.course;
  const auto key = digest::DigestKey::expand(m.key);
  const auto source = [&](unsigned threads, const mover::ChunkSink& sink) {
    return m.copy->read(key, threads, sink);
  };
  const auto sent_bytes = m.sender->send(source, *c.target);
  c.copying.digests = m.sender->digests();
  GCR_TRY(sent_bytes);
  c.run.report.set_sent_vram_bytes(*sent_bytes);
  return {};
}

/// VRAM beside images.
Status send(Move& m) {
  Course& c = m.course;
  const worker::Phases::Timer timer(c.run.phases, "course", "send");
  c.run.console.tell("send",
                     fmt::format("sending {} of VRAM", format_bytes(m.copy->total_bytes())));
  c.run.console.begin_copying(c.target->channel());
  auto vram = std::async(std::launch::async, [&m, &c] {
    return worker::guarded(
        [&] { return c.run.phases.time("vram", "send", [&m] { return send_vram(m); }); });
  });
  const Status images = worker::guarded([&]() -> Status {
    GCR_TRY(source::open_image_sink(c));
    return source::send_images(c);
  });
  if (!images) c.target->channel().cancel();
  const Status vram_sent = vram.get();
  GCR_TRY(images);
  GCR_TRY(vram_sent);
  c.run.report.set_image_mode_reason("the job stands still");
  GCR_TRY(fault::point("source.flushed"));
  return c.run.worker.cancellation.check();
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
  course.run.report.set_suspended(true);
  move::Move m{course};
  const auto send_all = [&m] {
    using namespace move;
    return run_steps(m.course.run, m, {take, examine, preflight, begin, prepare, send});
  };
  co_await run_with_console(context, console, [&] { source::migrate(course, send_all); });
}

Result<proto::Envelope> run_suspended_check(worker::WorkerContext& context,
                                            const proto::MigrateRequest& request) {
  GCR_ASSIGN(const journal::Entry entry, find_suspended(context, request.pid()));
  GCR_ASSIGN(const journal::Contents contents, journal::peek(entry.path));
  GCR_ASSIGN(const auto members, living_members(context.permissions, contents.records));
  GCR_ASSIGN(const gpu::HostCopy copy, open_copy(contents.records, request.pid()));
  GCR_ASSIGN(const preflight::SuspendedJob job,
             describe_suspended(contents.records, members, copy));
  return check(context, request, journal::pids_of(members), &job);
}

}  // namespace gcr::migration
