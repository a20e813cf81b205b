// One migration away from this host, as a course of steps on one thread. Steps block; each is a
// function of what it works on:
//   claim.cc       whose the processes are, and the journal
//   prepare.cc     everything before the first byte is copied
//   buffers.cc     which buffers there are, and who keeps them
//   copy.cc        rounds while the process runs, the pause, the gate
//   memory_files.cc  files in memory that go along
//   switchover.cc  the last round beside checkpoint and dump, up to the target's vote
//   commit.cc      the commit, or the way back
// course.cc has their order. Console has what goes on beside them, on the thread of the io_context.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "migrate-agent/commit/states/commit_log.h"
#include "migrate-agent/gpu/allocations/allocations.h"
#include "migrate-agent/gpu/keeper/keeper.h"
#include "migrate-agent/migration/engine/run.h"
#include "migrate-agent/migration/source/outgoing_images.h"
#include "migrate-agent/migration/source/precopy.h"
#include "migrate-agent/migration/source/source_job.h"
#include "migrate-agent/migration/target/target.h"
#include "migrate-agent/migration/undo/recovery.h"
#include "migrate-agent/preflight/examine/examination.h"
#include "migrate-agent/process/memory_files/outgoing.h"
#include "migrate-agent/transfer/images/scratch_directory.h"
#include "migrate-agent/worker/runtime/phases.h"
#include "src/base/uuid.h"

namespace gcr::migration::source {

using Clock = worker::Phases::Clock;

/// What moves.
struct Subject {
  worker::MovableProcess claimed;               ///< the process that was named
  std::optional<procfs::Process> handle;        ///< of it
  std::optional<preflight::Examination> found;  ///< until both preflights are done
  std::shared_ptr<const device::Driver> driver;
  std::string command;
  std::uint64_t resident_bytes = 0;
  journal::ProcessIds members;  ///< of the job: the claimed process, and all below it
  proto::GroupLimits limits;    ///< of their control groups, once examined
  std::map<pid_t, process::Confinement> confinements;  ///< likewise, what they were in
  int examined = 0;  ///< so many of the members, the first ones, were: see follow_members()
  gpu::Job job;
  gpu::Lister lister;
  std::optional<preflight::DriverAlone> driver_alone;  ///< the member without the preload library
  std::shared_ptr<const criu::Plugin> criu_plugin;     ///< null: no member needs one
  std::optional<SourceJob> processes;
  std::optional<keeper::Keeper> keeper;
  std::optional<std::vector<gpu::Mapping>> kept;     ///< what the keeper holds, once armed
  std::optional<preflight::SuspendedJob> suspended;  ///< if it was suspended before
};

/// How it is copied.
struct Copying {
  std::optional<images::ScratchDirectory> scratch;
  std::optional<mover::OutgoingVram> vram;
  std::optional<Precopy> precopy;
  mover::VramDigests digests;  ///< of all VRAM, as sent
  std::optional<OutgoingImages> images;
  images::Sink* sink = nullptr;  ///< the target's
  images::SentImages sent;
  std::vector<process::ThreadRights> threads;  ///< all, as dumped
  std::vector<procfs::Process> stopped;        ///< all that the dump has stopped
  std::vector<proto::DumpedMember> members;    ///< what they are, in the same order
  memory_files::Renamed renamed;  ///< names that files in memory have for the dump, if any
};

/// What is known about the migration itself.
struct Account {
  bool detaching_noted = false;
  std::optional<Clock::time_point> gate_closed_at{};
  Clock::duration undone_closings{};  ///< of the gate, which opened again here
  std::string kind{};                 ///< of program, and
  SteadyDowntime steady{};            ///< what this kind takes
  Clock::duration last_round_took{};
  Clock::duration control_took{};
};

struct Course;
/// After the claim. kInvalidArgument if the request names none. Null for a course that stays on
/// this host.
using FindTarget = std::function<Result<std::unique_ptr<Target>>(const Course& course)>;

/// Members are destroyed in reverse: the target's channel reads memory of `copying`.
struct Course {
  Run run;
  FindTarget find_target;
  proto::MigrateRequest request;
  Account account{};
  Subject subject{};
  Copying copying{};
  std::unique_ptr<Target> target{};  ///< from claim() on; null: it stays on this host
  worker::Cancellation::Registration interrupting{};
};

/// Gives a checkpoint that has none a name (after the time), and says in the log what begins.
void introduce(Course& course);

/// The other agent, or a store.
Result<std::unique_ptr<Target>> find_target(const Course& course);

/// The whole course, to the report.
void migrate(Course& course);

/// The same with other steps before the vote: `send_all` ends when the target has everything.
void migrate(Course& course, const std::function<Status()>& send_all);

/// Completes the report, and tells the daemon and the operator how the course has ended.
void conclude(Course& course, const Status& done);

/// All steps up to the target's vote; an Error if one fails, or if the migration is cancelled.
Status run_to_vote(Course& course);

Status claim(Course& c);
Status examine(Course& c);
Status preflight(Course& c);
/// Both, and the claim again and both once more where what was refused may have been a process that
/// has ended since.
Status agree(Course& c);
Status begin(Course& c);
Status prepare(Course& c);
Status copy(Course& c);
Status switch_over(Course& c);

/// Everything is sent: the target votes. The second does not say so in the journal.
Status restore(Course& c);
Status ask_for_vote(Course& c);
Status last_look(Course& c);

/// After the vote. A failure before the decision undoes everything.
Status commit(Course& c);

/// Right before the dump: gives files in memory the names that CRIU needs. Right after it: takes
/// them back.
Status name_memory_files(Course& c);
Status unname_memory_files(Course& c);

/// Instead of a vote and a commit, for a checkpoint of a job that goes on: lets it go on, and then
/// completes the checkpoint. A failure leaves the job running.
Status go_on(Course& c);

/// After the dump: sends the files in memory that the target wants. `members`: all, as they are
/// now.
Status carry_memory_files(Course& c, const std::vector<memory_files::Member>& members);

/// For undoing what was done to the processes.
undo::InHand in_hand(Course& c);

/// Before the commit: undoes everything and tells the target. Never succeeds: gives `cause`, or why
/// there is more to do.
Status give_up(Course& c, Error cause);

// What several steps use.

/// Whose processes may be moved to where this job goes: a store is its user's to read.
worker::Permissions permissions(const Course& c);

/// Finds the target, and claims the members: those that are known, and all below the first.
Status claim_for_target(Course& c);

Status prepare_images(Course& c);

using DigestSecret = std::array<std::byte, 32>;
using Buffers = google::protobuf::RepeatedPtrField<proto::Buffer>;
/// Room for these buffers at the target, and its channel.
Result<Prepared> prepare_target(Course& c, const DigestSecret& key, Buffers buffers);

/// Where images go; if rounds have found out the link's rate, compressed accordingly.
Status open_image_sink(Course& c);

/// After control state was taken: the dump, and the files in memory. The sink is flushed.
Status send_images(Course& c);

/// With what is known so far.
journal::Began description(const Course& c);

/// Asks for each process whether it may be moved, as it is now, and takes over those that were born
/// below the claimed one since the last look; `tree` is the claimed one and all below it.
Status follow_members(Course& c, const std::vector<pid_t>& tree);

/// Whether what was refused, of members that are not examined yet, may go by itself: one of them
/// has ended or ends soon, and is waited for, until `end`.
bool is_transient(const Course& c, const Error& refused, Clock::time_point end);

/// When nothing of the job runs: the same, and all of them are still what was examined.
Status examine_frozen(Course& c);

/// Takes over what the process has allocated since the last look, and lets go of what it has freed;
/// `changes` says so to the target.
Status follow_allocations(Course& c, proto::BuffersRequest& changes);

/// The same, and tells the target.
Status refresh_buffers(Course& c);

Status start_keeper(Course& c);

/// From here on VRAM outlives this worker.
Status arm_keeper(Course& c);

/// From here on the journal says that the process may be taken apart, and it is in the migration's
/// group.
Status note_detaching(Course& c);

/// Closes the gate.
Status hold_back(Course& c);

/// With the gate closed: arms the keeper, and takes VRAM and control state from all members.
Status take_control_state(Course& c);

/// Then: nobody outside has got memory of the job's since preflight; `members`
/// is who had descriptors of it then.
Status check_sharers(const Course& c, const std::vector<pid_t>& members);

/// The gate is open again, and the process still runs here.
void count_undone_closing(Course& c);

}  // namespace gcr::migration::source
