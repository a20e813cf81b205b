// The end of the source's course: the commit, or the way back. Every failure before the commit
// leads back to a running process, by the functions of migrate-agent/migration/finish.
#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/migration/finish/records.h"
#include "migrate-agent/migration/finish/source.h"
#include "migrate-agent/migration/source/course.h"
#include "src/base/log.h"

namespace gcr::migration::source {
namespace {

using std::chrono::milliseconds;

/// For a living process to answer at its door.
constexpr milliseconds kDoorPatience{1000};

/// Records whether the process has ended by itself, besides any other error.
void look_for_end(Course& c) {
  const auto& handle = c.subject.handle;
  auto& processes = c.subject.processes;
  if (!handle) return;
  bool ended = handle->is_ending();
  if (!ended && processes && !processes->is_dumped()) {
    const auto has_closed_its_door = [&](const GpuMember& member) {
      if (member.process.pid() != handle->pid() || member.access->is_driver_alone()) return false;
      const auto answered = member.access->look(kDoorPatience);
      return !answered && answered.error().code() == Code::kNotFound;
    };
    ended = std::ranges::any_of(processes->gpu_members(), has_closed_its_door) &&
            handle->ends_within(gpu::GpuAccess::kEndPatience);
  }
  c.run.report.set_process_ended(ended);
}

/// `cause`, or that the process has ended, if it has.
Error or_its_end(const Course& c, Error cause) {
  if (!c.run.report.process_ended()) return cause;
  return Error(Code::kNotFound,
               fmt::format("process {} ended by itself before it was moved", c.request.pid()));
}

/// After undoing: `cause`, or why there is more to do.
Error went_back(Course& c, const Error& cause, const Status& undone) {
  if (undone) {
    if (c.subject.handle->has_ended()) c.run.report.set_process_ended(true);
    count_undone_closing(c);
    return or_its_end(c, cause);
  }
  c.run.report.set_recovering(true);
  return Error(Code::kInternal, fmt::format("{}; and the source could not be resumed yet: {}",
                                            cause.message(), undone.error().message()));
}

/// It ends now.
void note_downtime(Course& c) {
  c.run.report.set_downtime_ms(
      in_milliseconds(c.account.undone_closings + (Clock::now() - *c.account.gate_closed_at)));
}

/// For the expected downtime of later migrations. What goes through the driver alone depends on
/// amounts that are known each time; a suspended job stood still before.
void remember(const Course& c) {
  if (c.subject.driver_alone || c.subject.suspended) return;
  const Account& account = c.account;
  const double beside_ms = in_milliseconds(account.control_took);
  const double overlapped_ms = std::max(beside_ms, in_milliseconds(account.last_round_took));
  const double closed_ms = c.run.report.downtime_ms() - in_milliseconds(account.undone_closings);
  const Status remembered = remember_downtime(
      c.run.worker.config.state_dir, account.kind, c.run.report.prefilled(),
      {.beside_ms = beside_ms, .rest_ms = std::max(0.0, closed_ms - overlapped_ms)});
  if (!remembered) spdlog::warn("{}", remembered.error().message());
}

}  // namespace

undo::InHand in_hand(Course& c) {
  SourceJob& processes = *c.subject.processes;
  std::map<pid_t, gpu::GpuAccess*> accesses;
  for (GpuMember& member : processes.gpu_members()) {
    accesses[member.process.pid()] = member.access.get();
  }
  return {.accesses = std::move(accesses),
          .driver = c.subject.driver,
          .vram = [&c]() -> Result<gpu::MemberDescriptors> {
            GCR_ASSIGN(auto descriptors, c.copying.vram->descriptors());
            return c.subject.job.split(std::move(descriptors));
          },
          .gated = processes.gated(),
          .detaching = processes.detaching(),
          .took =
              [&phases = c.run.phases](const char* step, Clock::time_point began) {
                phases.add("process", step, began, Clock::now());
              }};
}

Status commit(Course& c) {
  const worker::Phases::Timer timer(c.run.phases, "course", "commit");
  GCR_ASSIGN(const proto::CommitReply confirmed,
             migration::commit(
                 c.run, *c.target,
                 {.give_up = [&c](Error cause) { return give_up(c, std::move(cause)).error(); },
                  .answered = [&c] { note_downtime(c); },
                  .in_hand = [&c] { return in_hand(c); },
                  .went_back = [&c](const Error& lost,
                                    const Status& undone) { return went_back(c, lost, undone); },
                  .unconfirmed =
                      "; the agent keeps asking, and the stopped process is kept at the source"}));
  if (c.request.has_checkpoint()) {
    c.run.report.set_checkpoint(c.request.checkpoint().name());
    return {};
  }
  c.run.report.set_destination_pid(confirmed.pid());
  remember(c);
  c.run.console.tell("commit",
                     fmt::format("process {} runs at {}", confirmed.pid(), c.target->name()));
  return {};
}

namespace {

/// The vote and the commit of a checkpoint whose job runs already.
Status complete_checkpoint(Course& c) {
  GCR_TRY(ask_for_vote(c));
  GCR_TRY(c.run.worker.cancellation.check());
  GCR_TRY(c.target->commit());
  c.run.report.set_checkpoint(c.request.checkpoint().name());
  return {};
}

}  // namespace

/// Until the last record nothing says that there is a checkpoint, so whoever finds the journal
/// removes it, unless it has its name by then.
Status go_on(Course& c) {
  const worker::Phases::Timer timer(c.run.phases, "course", "complete");
  const Error unfinished(Code::kInternal, "the agent died before the checkpoint was complete");
  undo::InHand hand = in_hand(c);
  hand.running = [&c] { note_downtime(c); };
  const auto taken_back = c.run.phases.time("process", "take back", [&] {
    return worker::guarded([&]() -> Status {
      GCR_TRY(finish::take_back(*c.run.log, c.run.worker.config, commit::SourceEvent::kFailed,
                                finish::aborted(unfinished), &hand));
      return {};
    });
  });
  Status completed = taken_back;
  if (taken_back) completed = worker::guarded([&] { return complete_checkpoint(c); });
  if (!completed) c.target->abort(completed.error().message());
  if (!taken_back) return went_back(c, unfinished, taken_back);
  journal::Record finished = finish::finished(
      completed ? fmt::format("the checkpoint {} is complete", c.run.report.checkpoint())
                : "the process runs here");
  finished.mutable_finished()->set_checkpointed(completed.has_value());
  const Status noted = c.run.log->advance(commit::SourceEvent::kRolledBack, std::move(finished));
  if (!noted) c.run.report.add_notes("at the source: " + noted.error().message());
  return completed;
}

Status give_up(Course& c, Error cause) {
  if (c.copying.precopy) c.target->channel().cancel();
  look_for_end(c);
  if (c.run.report.process_ended()) spdlog::info("the process has ended: {}", cause.message());
  cause = or_its_end(c, std::move(cause));
  Status given_up = cause;
  if (c.run.log) {
    const undo::InHand hand = in_hand(c);
    const Status undone = worker::guarded([&] {
      return finish::undo(*c.run.log, c.run.worker.config, commit::SourceEvent::kFailed,
                          finish::aborted(cause), &hand);
    });
    given_up = went_back(c, cause, undone);
  }
  if (c.target != nullptr) c.target->abort(cause.message());
  return given_up;
}

}  // namespace gcr::migration::source
