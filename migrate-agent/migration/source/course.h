// The course of a migration away from this host: of a running job to another agent or into a store.
// Suspends, and migrations of suspended jobs, use its steps (migrate-agent/migration/suspend).
//
// Steps block, on one thread. Each returns the input of the next one:
//
//   claim.cc         Claimed: the processes belong to this migration; Begun: it has a journal
//   prepare.cc       both preflights; Prepared: both sides are ready
//   buffers.cc       TakenVram: the job's buffers and their keeper
//   copy.cc          rounds while the job runs, the pause, the gate
//   switchover.cc    Sent: the last round, concurrently checkpoint and dump
//   memory_files.cc  memory files that move with the job
//   commit.cc        the commit or the rollback
//
// course.cc has their order. The Console serves operators on the thread of the io_context.
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
#include "migrate-agent/migration/source/layers.h"
#include "migrate-agent/migration/source/member.h"
#include "migrate-agent/migration/source/outgoing_images.h"
#include "migrate-agent/migration/source/precopy.h"
#include "migrate-agent/migration/source/source_job.h"
#include "migrate-agent/migration/target/target.h"
#include "migrate-agent/preflight/examine/examination.h"
#include "migrate-agent/transfer/images/scratch.h"
#include "store/owner.h"

namespace gcr::migration::source {

using Clock = worker::Phases::Clock;
using DigestSecret = std::array<std::byte, 32>;
using Buffers = google::protobuf::RepeatedPtrField<proto::Buffer>;

struct Claimed;
/// Creates the target of a claimed job. kInvalidArgument if the request names none.
using FindTarget = std::function<Result<std::unique_ptr<Target>>(const Claimed& claimed)>;

/// The order of an operator, and the state of its execution.
struct Course {
  Run run;
  FindTarget find_target;  ///< null: the job stays on this host
  proto::MigrateRequest request;
};

/// Processes that no other migration can claim. The order of the members is final once they are
/// examined: later ones are added at the end.
struct Claimed {
  Course& course;
  Members members{};
  std::optional<preflight::SuspendedJob> suspended{};  ///< set if the job was suspended before
  std::unique_ptr<Target> target{};                    ///< null: the job stays on this host
  worker::Cancellation::Registration
      interrupting{};  ///< interrupts waits for the target on a cancellation

  const procfs::Process& root() const { return members.front().process; }
  void end_target() {
    interrupting.reset();
    target.reset();
  }
};

/// A migration with a journal, which survives this worker. The processes are still untouched.
struct Begun {
  Course& course;
  Claimed& claimed;
  DigestSecret key;           ///< digests of all sent data use it
  proto::GroupLimits limits;  ///< of the members' control groups
  std::shared_ptr<const device::Driver> driver;
  gpu::Job job;
  gpu::Lister lister;
  std::optional<preflight::DriverAlone> driver_alone;  ///< the member without the preload library
  std::shared_ptr<const criu::Plugin> criu_plugin;     ///< null: no member needs one
  std::uint64_t resident_bytes;  ///< total of all members when they were examined
  SourceJob processes;

  bool in_container() const { return course.run.began.has_container(); }
};

/// The VRAM of the members, exported to this worker, and its keeper.
struct TakenVram {
  TakenVram(const Begun& begun, keeper::Keeper started)
      : outgoing(begun.driver, digest::DigestKey::expand(begun.key)), keeper(std::move(started)) {}

  mover::OutgoingVram outgoing;
  keeper::Keeper keeper;
  std::optional<std::vector<gpu::Mapping>>
      kept{};  ///< the mappings that the keeper holds, once armed
};

/// The members' state outside VRAM: CRIU's images, and memory that this agent reads itself.
struct Images {
  images::ScratchDirectory scratch;
  OutgoingImages outgoing;
  OutgoingLayers layers{};
  images::Sink* sink = nullptr;  ///< the target's, once images are sent
};

/// Both sides are ready. The target is destroyed before `vram`, whose memory its channel reads.
struct Prepared {
  ~Prepared() { begun.claimed.end_target(); }

  Begun& begun;
  std::unique_ptr<TakenVram> vram;
  Images images;
  Precopy precopy;
  std::string kind;       ///< the kind of program, for the downtime history
  SteadyDowntime steady;  ///< the expected times of this kind
  Clock::duration last_round_took{};
  Clock::duration control_took{};
};

// The steps.

Result<Claimed> claim(Course& course);
/// Examines the job on this host. Members that have ended are removed from the list.
Result<preflight::Examination> examine(Claimed& claimed);
/// Asks the target for its findings, and checks that the examined processes have not ended.
Status preflight(const Claimed& claimed, const preflight::Examination& found);
/// Runs examine() and preflight(); repeats them after a refusal because of an ended process.
Result<preflight::Examination> agree(Claimed& claimed);
/// Begins the journal. A migration that fails from here on leaves a journal.
Result<std::unique_ptr<Begun>> begin(Claimed& claimed, preflight::Examination found);
Result<std::unique_ptr<Prepared>> prepare(Begun& begun);
/// Copies VRAM in rounds, and closes the gate once the rest may be sent in the downtime.
Status copy(Prepared& prepared);
Result<Sent> switch_over(Prepared& prepared);
/// Asks the target for its vote. kCancelled if an operator has cancelled meanwhile.
Result<Vote> ask_for_vote(const Claimed& claimed, const Sent& sent);
/// Checks that all dumped processes still exist; otherwise kNotFound.
Status check_still_stopped(const Claimed& claimed);
/// Commits, and gives the target's confirmation. `vram`: null if it was not taken over.
Result<proto::CommitReply> commit(Begun& begun, TakenVram* vram, const Vote& vote);
/// Ends the checkpoint of a job that keeps running: resumes the job, then asks for the vote and
/// commits. A failure leaves the job running.
Result<Vote> resume_and_complete(Begun& begun, TakenVram* vram, const Sent& sent);
/// The steps that a course has completed when it ends; null: not reached.
struct Reached {
  Claimed* claimed = nullptr;
  Begun* begun = nullptr;
  TakenVram* vram = nullptr;
};
/// Ends a course before its commit: undoes everything, and sends an abort to the target. Gives
/// `cause`, or the reason why a recovery has to continue.
Error give_up(Course& course, const Reached& reached, const Error& cause);

/// Runs a migration of a running job from beginning to end, and sends its report.
void migrate(Course& course);

/// The last steps, if everything was `sent`: the vote and the commit, or, for a checkpoint of a job
/// that goes on, resume_and_complete(). Otherwise the undoing.
Result<Vote> finish(Course& course, const Reached& reached, Result<Sent>& sent);

/// Sets the run's first fields, names a checkpoint that has no name, and logs the beginning.
void introduce(Course& course);

/// Creates the target that the request names: another agent or a store.
Result<std::unique_ptr<Target>> find_target(const Claimed& claimed);

/// Adds the bytes on the wire and the reconnections to the report.
void report_wire(Run& run, Target& target);

/// Preflight alone, of the job with the members `pids`, the root first. `suspended`: null, or the
/// description of a suspended job, which is neither claimed again nor asked about its GPU state.
Result<proto::Envelope> check(worker::WorkerContext& context, const proto::MigrateRequest& request,
                              const std::vector<pid_t>& pids,
                              const preflight::SuspendedJob* suspended);

// Functions that several steps use.

/// The rights that apply to this job's target: a store can be read by its owner, so only the
/// owner's processes may be stored there.
worker::Permissions permissions(const Course& course);

/// The owner of the job with this root or, for a checkpoint, of its files. Those of a container's
/// job are root's, because files of all users of the container are among them: kPermissionDenied if
/// the requester may not move root's processes.
Result<store::Owner> owner_of(const worker::WorkerContext& worker,
                              const proto::MigrateRequest& request,
                              const worker::MovableProcess& root, bool in_container);

/// Writes that owner into the journal's beginning.
Status note_owner(Course& course, pid_t pid, const worker::MovableProcess& root);

/// Creates the target, and claims the known members and all descendants of the first.
Status claim_for_target(Claimed& claimed);

Result<Images> prepare_images(Begun& begun);

/// Makes the target allocate memory for the buffers and open its channel.
Result<PreparedTarget> prepare_target(const Begun& begun, Buffers buffers);

/// Opens the target's sink for images, compressed for a link of this rate; 0: unknown.
Status open_image_sink(const Begun& begun, Images& images, double link_bytes_per_s);

/// After control state was taken: dumps the processes, sends images and memory files, and flushes
/// the sink. Adds the files and members to `request`.
Status send_images(Begun& begun, Images& images, proto::RestoreRequest& request);

/// Right before the dump: gives memory files the names that CRIU needs; right after: removes them.
Result<memory_files::Renamed> name_memory_files(const Begun& begun);
Status unname_memory_files(const Begun& begun, const memory_files::Renamed& renamed);

/// After the dump of `members`: sends the memory files that the target wants.
Status carry_memory_files(const Begun& begun, images::Sink& sink,
                          const std::vector<memory_files::Member>& members);

/// The worker's state of the processes, for an undo. `vram`: null if it was not taken over.
undo::WorkerState worker_state(Begun& begun, TakenVram* vram);

/// Checks again whether each process may be moved, and adds processes that were started below the
/// claimed one since the members were listed. `tree` is the claimed process and all below it.
Status follow_members(Begun& begun, const std::vector<pid_t>& tree);

/// Whether a refusal may be temporary: a member that is not examined yet has ended, or ends soon.
/// Waits for that until `end`.
bool is_transient(const Claimed& claimed, const Error& refused, Clock::time_point end);

/// When no process runs: follow_members(), and a check that no member has changed since.
Status examine_frozen(Begun& begun);

/// When no process runs, of a job whose addresses move: takes its network down, so that what peers
/// send is not confirmed, and they send it again at the destination. kUnavailable if the kernel
/// makes or ends connections that no process has; then the network is up again.
Status take_network_down(const Run& run);

/// Starts a keeper, and writes it into the journal before it holds anything.
Result<keeper::Keeper> start_keeper(Run& run, bool of_copy = false);

/// Starts the keeper; no VRAM is taken over yet.
Result<std::unique_ptr<TakenVram>> take_vram(const Begun& begun);

/// Exports new allocations, and releases freed ones. Gives the changes for the target.
Result<proto::BuffersRequest> follow_allocations(Begun& begun, TakenVram& vram);

/// Runs follow_allocations(), and sends the changes to the target.
Status refresh_buffers(Prepared& prepared);

/// Gives all VRAM to the keeper; afterwards it survives this worker.
Status arm_keeper(Begun& begun, TakenVram& vram);

/// Writes Detaching, so that from here on a recovery expects detached processes, and moves the
/// members into the migration's control group. Does this once.
Status note_detaching(Begun& begun, TakenVram& vram);

/// Closes the gates of all members, and starts the downtime.
Status close_gate(Begun& begun);

/// With the gate closed: gives the keeper all VRAM, and detaches and checkpoints all members.
Status take_control_state(Begun& begun, TakenVram& vram);

/// With the gate closed: checks that no process outside the job has obtained the job's GPU memory
/// since preflight. `members`: the processes that had descriptors of it then.
Status check_sharers(const Begun& begun, const std::vector<pid_t>& members);

/// Records that the gate is open again and the job still runs here.
void note_undone_closing(Run& run);

}  // namespace gcr::migration::source
