// One migration away from this host: of a running job to another agent or into a store. Suspends,
// and moves of what is suspended, use its steps (migrate-agent/migration/suspend).
//
// Steps block, on one thread. Each gives what the next one needs:
//   claim.cc         Claimed: the processes are this migration's; Begun: it has a journal
//   prepare.cc       both preflights; Prepared: both sides are ready
//   buffers.cc       TakenVram: which buffers there are, and who keeps them
//   copy.cc          rounds while the job runs, the pause, the gate
//   switchover.cc    Sent: the last round, concurrently checkpoint and dump
//   memory_files.cc  files in memory that go along
//   commit.cc        the commit, or the undoing
// course.cc has their order. The Console serves operators meanwhile, on the thread of the
// io_context.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "migrate-agent/gpu/allocations/allocations.h"
#include "migrate-agent/gpu/keeper/keeper.h"
#include "migrate-agent/gpu/mover/outgoing_vram.h"
#include "migrate-agent/migration/engine/run.h"
#include "migrate-agent/migration/source/member.h"
#include "migrate-agent/migration/source/outgoing_images.h"
#include "migrate-agent/migration/source/precopy.h"
#include "migrate-agent/migration/source/source_job.h"
#include "migrate-agent/migration/target/target.h"
#include "migrate-agent/preflight/examine/examination.h"
#include "migrate-agent/transfer/images/scratch_directory.h"

namespace gcr::migration::source {

using Clock = worker::Phases::Clock;
using DigestSecret = std::array<std::byte, 32>;
using Buffers = google::protobuf::RepeatedPtrField<proto::Buffer>;

struct Claimed;
/// The target of a claimed job. kInvalidArgument if the request names none.
using FindTarget = std::function<Result<std::unique_ptr<Target>>(const Claimed& claimed)>;

/// What was ordered.
struct Course {
  Run run;
  FindTarget find_target;  ///< null: the job stays on this host
  proto::MigrateRequest request;
};

/// No other migration gets these processes. The members' order is final once they are examined:
/// later ones are added at the end.
struct Claimed {
  Course& course;
  Members members{};
  std::optional<preflight::SuspendedJob> suspended{};  ///< if the job was suspended before
  std::unique_ptr<Target> target{};                    ///< null: the job stays on this host
  worker::Cancellation::Registration interrupting{};   ///< of the target's waits

  const procfs::Process& root() const { return members.front().process; }
  void end_target() {
    interrupting.reset();
    target.reset();
  }
};

/// The migration has a journal, and survives this worker. Nothing was done to the processes yet.
struct Begun {
  Course& course;
  Claimed& claimed;
  DigestSecret key;           ///< under which all that is sent is digested
  proto::GroupLimits limits;  ///< of the members' control groups
  std::shared_ptr<const device::Driver> driver;
  gpu::Job job;
  gpu::Lister lister;
  std::optional<preflight::DriverAlone> driver_alone;  ///< the member without the preload library
  std::shared_ptr<const criu::Plugin> criu_plugin;     ///< null: no member needs one
  std::uint64_t resident_bytes;                        ///< of all members, when they were examined
  SourceJob processes;
};

/// VRAM that the migration has taken over from the members.
struct TakenVram {
  TakenVram(const Begun& begun, keeper::Keeper started)
      : outgoing(begun.driver, digest::DigestKey::expand(begun.key)), keeper(std::move(started)) {}

  mover::OutgoingVram outgoing;
  keeper::Keeper keeper;
  std::optional<std::vector<gpu::Mapping>> kept{};  ///< what the keeper holds, once armed
};

/// Everything of the members that goes through CRIU, or beside it: images and ordinary memory.
struct Images {
  images::ScratchDirectory scratch;
  OutgoingImages outgoing;
  images::Sink* sink = nullptr;  ///< the target's, once images are sent
};

/// Both sides are ready to copy. The target ends before this: its channel reads memory of `vram`.
struct Prepared {
  Prepared(Begun& job, std::unique_ptr<TakenVram> taken, Images made, std::string kind_of_program,
           const SteadyDowntime& expected)
      : course(job.course),
        claimed(job.claimed),
        begun(job),
        vram(std::move(taken)),
        images(std::move(made)),
        precopy(vram->outgoing, *claimed.target, course.run.phases, course.run.console.meter(),
                course.run.console.limits()),
        kind(std::move(kind_of_program)),
        steady(expected) {}
  ~Prepared() { claimed.end_target(); }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  Course& course;
  Claimed& claimed;
  Begun& begun;
  std::unique_ptr<TakenVram> vram;
  Images images;
  Precopy precopy;
  std::string kind;       ///< of program, and
  SteadyDowntime steady;  ///< what this kind takes
  Clock::duration last_round_took{};
  Clock::duration control_took{};
};

// The steps.

Result<Claimed> claim(Course& course);
/// What this host alone can find about the job. Members that have ended are none any more.
Result<preflight::Examination> examine(Claimed& claimed);
/// What the target says of it.
Status preflight(const Claimed& claimed, const preflight::Examination& found);
/// Both, and again where a process that prevented it has ended meanwhile.
Result<preflight::Examination> agree(Claimed& claimed);
/// A migration that fails from here on leaves a journal.
Result<std::unique_ptr<Begun>> begin(Claimed& claimed, preflight::Examination found);
Result<std::unique_ptr<Prepared>> prepare(Begun& begun);
/// Until the gate is closed, and what is left may be sent then.
Status copy(Prepared& prepared);
Result<Sent> switch_over(Prepared& prepared);
/// The target votes. No operator has cancelled by then.
Result<Vote> ask_for_vote(const Claimed& claimed, const Sent& sent);
/// kNotFound if a process has ended that the dump had stopped.
Status check_still_stopped(const Claimed& claimed);
/// `vram`: null if it was not taken over. Gives what the target confirmed.
Result<proto::CommitReply> commit(Begun& begun, TakenVram* vram, const Vote& vote);
/// Instead of a vote and a commit, for a checkpoint of a job that goes on: lets it go on, and then
/// completes the checkpoint. A failure leaves the job running.
Status go_on(Prepared& prepared, const Sent& sent);
/// How far a course has come when it ends. Null: it has failed before.
struct Reached {
  Claimed* claimed = nullptr;
  Begun* begun = nullptr;
  TakenVram* vram = nullptr;
};
/// Instead of a commit: undoes everything and tells the target. Gives `cause`, or why there is more
/// to do.
Error give_up(Course& course, const Reached& reached, const Error& cause);

/// A migration of a running job from beginning to end, with its report.
void migrate(Course& course);

/// The last steps, if everything was `sent`: the vote and the commit. Else the undoing.
Result<Vote> vote_and_commit(Course& course, const Reached& reached, Result<Sent>& sent);

/// Gives a checkpoint that has none a name (after the time), and says in the log what begins.
void introduce(Course& course);

/// The other agent, or a store.
Result<std::unique_ptr<Target>> find_target(const Claimed& claimed);

/// Into the report: what went over the wire.
void report_wire(Run& run, Target& target);

// What several steps use.

/// Whose processes may be moved to where this job goes: a store is its user's to read.
worker::Permissions permissions(const Course& course);

/// Finds the target, and claims the members: those that are known, and all below the first.
Status claim_for_target(Claimed& claimed);

Result<Images> prepare_images(Begun& begun);

/// Room for these buffers at the target, and its channel.
Result<PreparedTarget> prepare_target(const Begun& begun, Buffers buffers);

/// Where images go; compressed for a link of this rate, 0: unknown.
Status open_image_sink(const Begun& begun, Images& images, double link_bytes_per_s);

/// After control state was taken: the dump, and the files in memory; the sink is flushed. Adds
/// files and members to `request`.
Status send_images(Begun& begun, Images& images, proto::RestoreRequest& request);

/// Right before the dump: gives files in memory the names that CRIU needs. Right after it: takes
/// them back.
Result<memory_files::Renamed> name_memory_files(const Begun& begun);
Status unname_memory_files(const Begun& begun, const memory_files::Renamed& renamed);

/// After the dump: sends the files in memory that the target wants. `members`: all, as they are
/// now.
Status carry_memory_files(const Begun& begun, images::Sink& sink,
                          const std::vector<memory_files::Member>& members);

/// For undoing what was done to the processes. `vram`: null if it was not taken over.
undo::InHand in_hand(Begun& begun, TakenVram* vram);

/// Asks for each process whether it may be moved, as it is now, and adds those that were born below
/// the claimed one since the members were listed; `tree` is the claimed one and all below it.
Status follow_members(Begun& begun, const std::vector<pid_t>& tree);

/// Whether what was refused, of members that are not examined yet, may go by itself: one of them
/// has ended or ends soon, and is waited for, until `end`.
bool is_transient(const Claimed& claimed, const Error& refused, Clock::time_point end);

/// When nothing of the job runs: follow_members(), and all of them are still what was examined.
Status examine_frozen(Begun& begun);

/// The journal knows the keeper before it holds anything.
Result<keeper::Keeper> start_keeper(Run& run, bool of_copy = false);

/// Nothing of it yet; its keeper has been started.
Result<std::unique_ptr<TakenVram>> take_vram(const Begun& begun);

/// Takes over what the members have allocated since the last call, and lets go of what they have
/// freed. Gives what the target has to be told.
Result<proto::BuffersRequest> follow_allocations(Begun& begun, TakenVram& vram);

/// follow_allocations(), and tells the target.
Status refresh_buffers(Prepared& prepared);

/// VRAM outlives this worker afterwards.
Status arm_keeper(Begun& begun, TakenVram& vram);

/// The journal says afterwards that the processes may be taken apart, and they are in the
/// migration's group. Once.
Status note_detaching(Begun& begun, TakenVram& vram);

Status close_gate(Begun& begun);

/// With the gate closed: arms the keeper, and takes VRAM and control state from all members.
Status take_control_state(Begun& begun, TakenVram& vram);

/// With the gate closed: no process outside the job has got memory of the job's since preflight;
/// `members` is who had descriptors of it then.
Status check_sharers(const Begun& begun, const std::vector<pid_t>& members);

/// The gate is open again, and the job still runs here.
void note_undone_closing(Run& run);

}  // namespace gcr::migration::source
