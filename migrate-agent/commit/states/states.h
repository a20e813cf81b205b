// The two state machines of the commit, as tables (proto/PROTOCOL.md, "The commit"). They
// have no side effects: the roles act, and CommitLog writes the records. tests/model/commit.pml has
// the same states and events under the same names, and proves their guarantees.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>

#include "proto/journal.pb.h"
#include "src/base/result.h"

namespace gcr::commit {

/// Of the source, the coordinator.
enum class SourceState : std::uint8_t {
  kInvalid = 0,
  kWorking,    ///< the process is the source's; the destination knows of the migration
  kAwaiting,   ///< as kWorking; the destination may be restored from now on
  kCommitted,  ///< the source's copy never runs again
  kDiscarded,  ///< an operator decided so: the source's copy is to be killed
  kConfirmed,  ///< the source's copy is gone, the process is the destination's: final
  kAborted,    ///< the source's copy is to run again
  kUndone,     ///< it runs, and nothing of the migration is left here: final
  kSuspended,  ///< it stands still, its VRAM is in host memory, and nobody works on it
  kResuming,   ///< its VRAM is there again, and it is to run again
  kResumed,    ///< it runs, and nothing of the suspension is left: final
};

enum class SourceEvent : std::uint8_t {
  kInvalid = 0,
  kKeeperStarted,        ///< note: the process that holds VRAM's descriptors
  kDetaching,            ///< note: the process may be found taken apart
  kAskRestore,           ///< RestoreRequest is about to be sent
  kVoteReceived,         ///< RestoreReply has come, and everything is verified
  kFailed,               ///< an error, a cancel, a silent peer
  kRestarted,            ///< the worker died; recovery took over
  kCommitConfirmed,      ///< CommitReply has come, the stopped copy is gone
  kCopyLost,             ///< CopyLost has come: the destination's copy never ran and never will
  kRolledBack,           ///< the copy runs, or has ended by itself
  kResolvedRunHere,      ///< an operator: the destination's copy will never run
  kResolvedDiscardHere,  ///< an operator: the copy here is not needed
  kCleared,              ///< it is killed
  kSuspended,            ///< all that was in VRAM is kept in host memory
  kResuming,             ///< VRAM has it again, and is kept
  kResumed,              ///< the job runs, or has ended by itself
  kEnded,                ///< the job ended while it was suspended
};

/// Of the destination, the participant.
enum class DestinationState : std::uint8_t {
  kInvalid = 0,
  kBuilding,   ///< nothing is promised
  kRestored,   ///< voted: its copy is frozen and can run at any time
  kCommitted,  ///< its copy is to run
  kRunning,    ///< it runs: final
  kAborted,    ///< its copy is to be destroyed
  kGone,       ///< it is gone, and nothing of the migration is left here: final
};

enum class DestinationEvent : std::uint8_t {
  kInvalid = 0,
  kKeeperStarted,        ///< note: the process that is to hold a suspended job's VRAM
  kRestored,             ///< the copy is frozen
  kFailed,               ///< an error, a silent peer, an abort before the vote
  kRestarted,            ///< the worker died before the vote; recovery took over
  kToldCommit,           ///< CommitRequest, or the answer COMMITTED
  kToldAbort,            ///< AbortRequest, or the answer ABORTED
  kCopyLost,             ///< the copy is gone, and never ran
  kHostLost,             ///< the host was restarted, and nobody knows whether the copy ran before
  kResumed,              ///< the copy runs
  kCleared,              ///< nothing is left
  kResolvedRunHere,      ///< an operator: the source's copy will never run
  kResolvedDiscardHere,  ///< an operator: the source's copy runs
};

/// Of either side.
using AnyState = std::variant<SourceState, DestinationState>;

/// One row: the record is durable before anybody acts on the new state.
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

/// The row for `event` in `state`; null if the protocol has none.
const SourceTransition* find(SourceState state, SourceEvent event);
const DestinationTransition* find(DestinationState state, DestinationEvent event);

/// As in the model: "awaiting", "vote_received".
std::string_view to_string(SourceState state);
std::string_view to_string(SourceEvent event);
std::string_view to_string(DestinationState state);
std::string_view to_string(DestinationEvent event);
std::string_view to_string(AnyState state);

/// The state that a journal records. kDataLoss for records that the protocol cannot have written.
Result<SourceState> replay_source(std::span<const journal::Record> records);
Result<DestinationState> replay_destination(std::span<const journal::Record> records);
Result<AnyState> replay(journal::Began::Role role, std::span<const journal::Record> records);

}  // namespace gcr::commit
