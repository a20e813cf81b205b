// The two state machines of the commit, as tables (proto/PROTOCOL.md, "The commit"). The tables
// have no side effects: the roles act, and CommitLog writes the records. tests/model/commit.pml has
// the same states and events under the same names and proves their guarantees.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "proto/journal.pb.h"
#include "src/base/result.h"

namespace gcr::commit {

/// States of the source, the coordinator.
enum class SourceState : std::uint8_t {
  kInvalid = 0,
  kWorking,    ///< the source owns the process; the destination knows of the migration
  kAwaiting,   ///< like kWorking; the destination may restore the process from now on
  kCommitted,  ///< the source's copy never runs again
  kDiscarded,  ///< an operator decided: the source's copy must be killed
  kConfirmed,  ///< the source's copy is gone, the destination owns the process: final
  kAborted,    ///< the source's copy must run again
  kUndone,     ///< the source's copy runs, nothing of the migration is left here: final
  kSuspended,  ///< the job is stopped, its VRAM is in host memory, and no process works on it
  kResuming,   ///< the job's VRAM is restored, and it must run again
  kResumed,    ///< the job runs, nothing of the suspension is left: final
};

enum class SourceEvent : std::uint8_t {
  kInvalid = 0,
  kKeeperStarted,        ///< note: which process holds the descriptors of VRAM
  kDetaching,            ///< note: after a crash the process may be found taken apart
  kAskRestore,           ///< RestoreRequest is about to be sent
  kVoteReceived,         ///< RestoreReply has arrived, and everything is verified
  kFailed,               ///< an error, a cancel, a silent peer
  kRestarted,            ///< the worker died; recovery took over
  kCommitConfirmed,      ///< CommitReply has arrived, the stopped copy is gone
  kCopyLost,             ///< CopyLost has arrived: the destination's copy never ran and never will
  kRolledBack,           ///< the copy runs, or its process has ended
  kResolvedRunHere,      ///< an operator: the destination's copy will never run
  kResolvedDiscardHere,  ///< an operator: the copy on this host is not needed
  kCleared,              ///< the copy is killed
  kSuspended,            ///< all content of VRAM is kept in host memory
  kResuming,             ///< the content is back in VRAM, which is kept
  kResumed,              ///< the job runs, or has ended
  kEnded,                ///< the job ended while it was suspended
};

/// States of the destination, the participant.
enum class DestinationState : std::uint8_t {
  kInvalid = 0,
  kBuilding,   ///< nothing is promised
  kRestored,   ///< voted: its copy is frozen and can run at any time
  kCommitted,  ///< its copy must run
  kRunning,    ///< its copy runs: final
  kAborted,    ///< its copy must be destroyed
  kGone,       ///< its copy is gone, and nothing of the migration is left here: final
};

enum class DestinationEvent : std::uint8_t {
  kInvalid = 0,
  kKeeperStarted,        ///< note: which process will hold a suspended job's VRAM
  kRestored,             ///< the copy is frozen
  kFailed,               ///< an error, a silent peer, an abort before the vote
  kRestarted,            ///< the worker died before the vote; recovery took over
  kToldCommit,           ///< CommitRequest, or the answer COMMITTED, has arrived
  kToldAbort,            ///< AbortRequest, or the answer ABORTED, has arrived
  kCopyLost,             ///< the copy is gone, and never ran
  kHostLost,             ///< the host was restarted; it is unknown whether the copy ran before
  kResumed,              ///< the copy runs
  kCleared,              ///< nothing of the migration is left
  kResolvedRunHere,      ///< an operator: the source's copy will never run
  kResolvedDiscardHere,  ///< an operator: the source's copy runs
};

/// A state of either side.
using AnyState = std::variant<SourceState, DestinationState>;

/// One row of a table: the record is durable before the caller acts on the new state.
template <class State, class Event>
struct Transition {
  State from;
  Event event;
  State to;
  journal::Record::BodyCase record;
};

using SourceTransition = Transition<SourceState, SourceEvent>;
using DestinationTransition = Transition<DestinationState, DestinationEvent>;

std::span<const SourceTransition> source_transitions();
std::span<const DestinationTransition> destination_transitions();

/// Returns the row for `event` in `state`; null if the protocol has none.
const SourceTransition* find(SourceState state, SourceEvent event);
const DestinationTransition* find(DestinationState state, DestinationEvent event);

/// Return the names that the model uses: "awaiting", "vote_received".
std::string_view to_string(SourceState state);
std::string_view to_string(SourceEvent event);
std::string_view to_string(DestinationState state);
std::string_view to_string(DestinationEvent event);
std::string_view to_string(AnyState state);

/// Returns the state that a journal's records lead to. kDataLoss if the protocol cannot have
/// written them.
Result<SourceState> replay_source(std::span<const journal::Record> records);
Result<DestinationState> replay_destination(std::span<const journal::Record> records);
Result<AnyState> replay(journal::Began::Role role, std::span<const journal::Record> records);

}  // namespace gcr::commit
