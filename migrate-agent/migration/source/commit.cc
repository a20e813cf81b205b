// The end of the source's course: the commit or the rollback. Every failure before the commit
// resumes the process, with the functions of migrate-agent/migration/finish.
#include <fmt/format.h>

#include "migrate-agent/migration/finish/records.h"
#include "migrate-agent/migration/finish/source.h"
#include "migrate-agent/migration/source/course.h"
#include "src/base/log.h"
#include "src/base/units.h"

namespace gcr::migration::source {
namespace {

using std::chrono::milliseconds;

/// The longest wait for a living process to answer at its door.
constexpr milliseconds kDoorPatience{1000};

/// Whether the claimed process has ended by itself, or is about to: its door has closed.
bool ends_by_itself(const Claimed& claimed, const Begun* begun) {
  if (claimed.root().is_ending()) return true;
  if (begun == nullptr || begun->processes.is_dumped()) return false;
  gpu::GpuAccess* const access = claimed.members.front().access.get();
  if (access == nullptr || access->is_driver_alone()) return false;
  const auto answered = access->read_state(kDoorPatience);
  return !answered && answered.error().code() == Code::kNotFound &&
         claimed.root().ends_within(gpu::GpuAccess::kEndPatience);
}

Error ended_by_itself(pid_t pid) {
  return Error(Code::kNotFound, fmt::format("process {} ended by itself before it was moved", pid));
}

/// After the rollback, the reason of the failure is its cause, or that the process has ended.
Undoing undoing(const Claimed& claimed, const undo::WorkerState& state) {
  return {&state, [&claimed](const Error& cause) {
            Run& run = claimed.course.run;
            note_undone_closing(run);
            if (!claimed.root().has_ended()) return cause;
            run.report.set_process_ended(true);
            return ended_by_itself(claimed.root().pid());
          }};
}

/// Asks for the vote and commits, for a checkpoint whose job runs already.
Result<Vote> complete_checkpoint(const Begun& begun, const Sent& sent) {
  GCR_ASSIGN(Vote vote, ask_for_vote(begun.claimed, sent));
  GCR_TRY(begun.claimed.target->commit());
  begun.course.run.report.set_checkpoint(begun.course.request.checkpoint().name());
  return vote;
}

}  // namespace

undo::WorkerState worker_state(Begun& begun, TakenVram* vram) {
  std::map<pid_t, gpu::GpuAccess*> accesses;
  for (const Member* member : begun.processes.gpu_members()) {
    accesses[member->pid()] = member->access.get();
  }
  return {.accesses = std::move(accesses),
          .driver = begun.driver,
          .vram = [&begun, vram]() -> Result<gpu::MemberDescriptors> {
            if (vram == nullptr) return gpu::MemberDescriptors();
            GCR_ASSIGN(auto descriptors, vram->outgoing.descriptors());
            return begun.job.split(std::move(descriptors));
          },
          .gated = begun.processes.gated(),
          .detaching = begun.processes.detaching(),
          .took =
              [&phases = begun.course.run.phases](const char* step, Clock::time_point began) {
                phases.add("process", step, began, Clock::now());
              }};
}

Result<proto::CommitReply> commit(Begun& begun, TakenVram* vram, const Vote& vote) {
  auto& [run, find_target, request] = begun.course;
  const worker::Phases::Timer timer(run.phases, "course", "commit");
  const undo::WorkerState state = worker_state(begun, vram);
  GCR_ASSIGN(proto::CommitReply confirmed,
             migration::commit(run, *begun.claimed.target, vote, undoing(begun.claimed, state),
                               "; the agent keeps asking the destination, and the stopped process "
                               "is kept at the source"));
  if (request.has_checkpoint()) {
    run.report.set_checkpoint(request.checkpoint().name());
    return confirmed;
  }
  run.report.set_destination_pid(confirmed.pid());
  run.console.tell("commit", fmt::format("process {} runs at {}", confirmed.pid(),
                                         begun.claimed.target->name()));
  return confirmed;
}

/// Resumes the job first, then completes the checkpoint. Until Finished is written the journal says
/// that the migration was aborted, so a recovery removes the checkpoint's files, unless the
/// checkpoint already has its name.
Result<Vote> resume_and_complete(Begun& begun, TakenVram* vram, const Sent& sent) {
  Run& run = begun.course.run;
  const worker::Phases::Timer timer(run.phases, "course", "complete");
  // The reason that a recovery reports if this worker dies before Finished is written.
  const Error interrupted(Code::kInternal,
                          "the source's worker died before the checkpoint was complete");
  undo::WorkerState state = worker_state(begun, vram);
  state.running = [&run] {
    run.report.set_downtime_ms(in_milliseconds(run.console.downtime().end()));
  };
  const auto rolled_back = run.phases.time("process", "take back", [&] {
    return worker::guarded([&] {
      return finish::roll_back(*run.log, run.worker.config, commit::SourceEvent::kFailed,
                               finish::aborted(interrupted), &state);
    });
  });
  if (!rolled_back) {
    begun.claimed.target->abort(rolled_back.error().message());
    return undone(run, interrupted, rolled_back.error());
  }
  auto completed = worker::guarded([&] { return complete_checkpoint(begun, sent); });
  if (!completed) begun.claimed.target->abort(completed.error().message());
  journal::Record finished = finish::finished(
      completed ? fmt::format("the checkpoint {} is complete", run.report.checkpoint())
                : "the process runs here");
  finished.mutable_finished()->set_checkpointed(completed.has_value());
  const Status noted = run.log->advance(commit::SourceEvent::kRolledBack, std::move(finished));
  if (!noted) run.report.add_notes("at the source: " + noted.error().message());
  return completed;
}

Error give_up(Course& course, const Reached& reached, const Error& cause) {
  Run& run = course.run;
  const auto& [claimed, begun, vram] = reached;
  if (claimed == nullptr) return migration::give_up(run, nullptr, cause);
  const bool ended = ends_by_itself(*claimed, begun);
  run.report.set_process_ended(ended);
  if (ended) {
    spdlog::info("the process ended by itself, which ended the migration: {}", cause.message());
  }
  const Error reason = ended ? ended_by_itself(claimed->root().pid()) : cause;
  Target* const target = claimed->target.get();
  if (begun == nullptr) return migration::give_up(run, target, reason);
  const undo::WorkerState state = worker_state(*begun, vram);
  return migration::give_up(run, target, reason, undoing(*claimed, state));
}

}  // namespace gcr::migration::source
