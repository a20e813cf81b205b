// CommitLog writes the record of an event's row before it takes the row's new state. replay() is
// the inverse: it finds for each record a row of the current state, and continues in that row's
// state. This is unambiguous: rows of one state with the same record lead to the same state, except
// the two with Resolved, whose record states which of the two decisions it was.
#include "migrate-agent/commit/states/states.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace gcr::commit {
namespace {

using journal::Record;

constexpr SourceTransition kSource[] = {
    {SourceState::kWorking, SourceEvent::kKeeperStarted, SourceState::kWorking,
     Record::kKeeperStarted},
    {SourceState::kWorking, SourceEvent::kDetaching, SourceState::kWorking, Record::kDetaching},
    {SourceState::kWorking, SourceEvent::kAskRestore, SourceState::kAwaiting, Record::kAwaiting},
    {SourceState::kAwaiting, SourceEvent::kVoteReceived, SourceState::kCommitted,
     Record::kCommitted},
    {SourceState::kWorking, SourceEvent::kFailed, SourceState::kAborted, Record::kAborted},
    {SourceState::kAwaiting, SourceEvent::kFailed, SourceState::kAborted, Record::kAborted},
    {SourceState::kWorking, SourceEvent::kRestarted, SourceState::kAborted, Record::kAborted},
    {SourceState::kAwaiting, SourceEvent::kRestarted, SourceState::kAborted, Record::kAborted},
    {SourceState::kAborted, SourceEvent::kRolledBack, SourceState::kUndone, Record::kFinished},
    {SourceState::kCommitted, SourceEvent::kCommitConfirmed, SourceState::kConfirmed,
     Record::kFinished},
    {SourceState::kCommitted, SourceEvent::kCopyLost, SourceState::kAborted, Record::kAborted},
    {SourceState::kCommitted, SourceEvent::kResolvedRunHere, SourceState::kAborted,
     Record::kResolved},
    {SourceState::kCommitted, SourceEvent::kResolvedDiscardHere, SourceState::kDiscarded,
     Record::kResolved},
    {SourceState::kDiscarded, SourceEvent::kCleared, SourceState::kConfirmed, Record::kFinished},
    {SourceState::kWorking, SourceEvent::kSuspended, SourceState::kSuspended, Record::kSuspended},
    {SourceState::kSuspended, SourceEvent::kKeeperStarted, SourceState::kSuspended,
     Record::kKeeperStarted},
    {SourceState::kSuspended, SourceEvent::kResuming, SourceState::kResuming, Record::kResuming},
    {SourceState::kSuspended, SourceEvent::kEnded, SourceState::kUndone, Record::kFinished},
    {SourceState::kResuming, SourceEvent::kResumed, SourceState::kResumed, Record::kFinished},
};

constexpr DestinationTransition kDestination[] = {
    {DestinationState::kBuilding, DestinationEvent::kKeeperStarted, DestinationState::kBuilding,
     Record::kKeeperStarted},
    {DestinationState::kBuilding, DestinationEvent::kRestored, DestinationState::kRestored,
     Record::kRestored},
    {DestinationState::kBuilding, DestinationEvent::kFailed, DestinationState::kAborted,
     Record::kAborted},
    {DestinationState::kBuilding, DestinationEvent::kRestarted, DestinationState::kAborted,
     Record::kAborted},
    {DestinationState::kRestored, DestinationEvent::kToldCommit, DestinationState::kCommitted,
     Record::kCommitted},
    {DestinationState::kRestored, DestinationEvent::kToldAbort, DestinationState::kAborted,
     Record::kAborted},
    {DestinationState::kRestored, DestinationEvent::kCopyLost, DestinationState::kAborted,
     Record::kAborted},
    {DestinationState::kRestored, DestinationEvent::kResolvedRunHere, DestinationState::kCommitted,
     Record::kResolved},
    {DestinationState::kRestored, DestinationEvent::kResolvedDiscardHere,
     DestinationState::kAborted, Record::kResolved},
    {DestinationState::kCommitted, DestinationEvent::kResumed, DestinationState::kRunning,
     Record::kFinished},
    {DestinationState::kCommitted, DestinationEvent::kCopyLost, DestinationState::kAborted,
     Record::kAborted},
    {DestinationState::kCommitted, DestinationEvent::kHostLost, DestinationState::kAborted,
     Record::kAborted},
    {DestinationState::kAborted, DestinationEvent::kCleared, DestinationState::kGone,
     Record::kFinished},
};

template <class Row, class State, class Event>
const Row* find_in(std::span<const Row> rows, State state, Event event) {
  const auto found = std::ranges::find_if(
      rows, [&](const Row& row) { return row.from == state && row.event == event; });
  return found == rows.end() ? nullptr : &*found;
}

/// Returns whether a record fits an event: Resolved is the record of two events and states which
/// one it was.
bool fits(const Record& record, std::string_view event) {
  if (record.body_case() != Record::kResolved) return true;
  return record.resolved().run_here() == (event == "resolved_run_here");
}

template <class Row, class State>
Result<State> replay(std::span<const Row> rows, State state, journal::Began::Role role,
                     std::span<const Record> records) {
  if (records.empty() || !records.front().has_began() || records.front().began().role() != role) {
    return Error(Code::kDataLoss, "the journal does not begin with Began of this role");
  }
  for (std::size_t i = 1; i < records.size(); ++i) {
    const auto found = std::ranges::find_if(rows, [&](const Row& row) {
      return row.from == state && row.record == records[i].body_case() &&
             fits(records[i], to_string(row.event));
    });
    if (found == rows.end()) {
      return Error(Code::kDataLoss, fmt::format("record {} of the journal is not allowed "
                                                "in state {}",
                                                i + 1, to_string(state)));
    }
    state = found->to;
  }
  return state;
}

}  // namespace

std::span<const SourceTransition> source_transitions() { return kSource; }
std::span<const DestinationTransition> destination_transitions() { return kDestination; }

const SourceTransition* find(SourceState state, SourceEvent event) {
  return find_in(source_transitions(), state, event);
}

const DestinationTransition* find(DestinationState state, DestinationEvent event) {
  return find_in(destination_transitions(), state, event);
}

std::string_view to_string(SourceState state) {
  constexpr auto kNames = std::to_array<std::string_view>(
      {"invalid", "working", "awaiting", "committed", "discarded", "confirmed", "aborted", "undone",
       "suspended", "resuming", "resumed"});
  return kNames.at(static_cast<std::size_t>(state));
}

std::string_view to_string(SourceEvent event) {
  constexpr auto kNames = std::to_array<std::string_view>(
      {"invalid", "keeper_started", "detaching", "ask_restore", "vote_received", "failed",
       "restarted", "commit_confirmed", "copy_lost", "rolled_back", "resolved_run_here",
       "resolved_discard_here", "cleared", "suspended", "resuming", "resumed", "ended"});
  return kNames.at(static_cast<std::size_t>(event));
}

std::string_view to_string(DestinationState state) {
  constexpr auto kNames = std::to_array<std::string_view>(
      {"invalid", "building", "restored", "committed", "running", "aborted", "gone"});
  return kNames.at(static_cast<std::size_t>(state));
}

std::string_view to_string(DestinationEvent event) {
  constexpr auto kNames = std::to_array<std::string_view>(
      {"invalid", "keeper_started", "restored", "failed", "restarted", "told_commit", "told_abort",
       "copy_lost", "host_lost", "resumed", "cleared", "resolved_run_here",
       "resolved_discard_here"});
  return kNames.at(static_cast<std::size_t>(event));
}

std::string_view to_string(AnyState state) {
  return std::visit([](auto one) { return to_string(one); }, state);
}

Result<SourceState> replay_source(std::span<const Record> records) {
  return replay(source_transitions(), SourceState::kWorking, journal::Began::SOURCE, records);
}

Result<DestinationState> replay_destination(std::span<const Record> records) {
  return replay(destination_transitions(), DestinationState::kBuilding, journal::Began::DESTINATION,
                records);
}

Result<AnyState> replay(journal::Began::Role role, std::span<const Record> records) {
  if (role == journal::Began::DESTINATION) return replay_destination(records);
  return replay_source(records);
}

}  // namespace gcr::commit
