// A journal together with the state that it records. A role, or its recovery, takes a step of the
// commit only through this class. Move-only; blocking; one thread at a time.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <type_traits>
#include <utility>
#include <variant>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/commit/journal/journal.h"
#include "migrate-agent/commit/states/states.h"

namespace gcr::commit {

template <class State, class Event>
class CommitLog {
 public:
  /// Creates a journal with Began and `others`, which are durable on success. Fails like
  /// Journal::create.
  static Result<CommitLog> create(const std::filesystem::path& state_dir, const Uuid& migration,
                                  journal::Began began, std::vector<journal::Record> others = {}) {
    return take(
        journal::Journal::create(state_dir, migration, kRole, std::move(began), std::move(others)));
  }

  /// Takes over, with its state, a journal whose owner is dead. Fails like Journal::open; also
  /// kDataLoss if the protocol cannot have written its records.
  static Result<CommitLog> open(const std::filesystem::path& path, journal::Lock how) {
    return take(journal::Journal::open(path, how));
  }

  /// Takes the step `event`. `record` is the one that the table has for it; on success it is
  /// durable. kInvalidArgument if the protocol has no such step in this state; other failures are
  /// those of Journal::append. On failure the state is unchanged. The exception is kDataLoss: the
  /// state is then unknown, the caller must do nothing more for this migration, and recovery reads
  /// the journal.
  Status advance(Event event, journal::Record record) {
    const auto* step = find(state_, event);
    if (step == nullptr || step->record != record.body_case()) {
      return Error(Code::kInvalidArgument, fmt::format("\"{}\" is not allowed in state "
                                                       "\"{}\" of the commit",
                                                       to_string(event), to_string(state_)));
    }
    const Status written = write(std::move(record));
    if (!written) {
      ++write_errors_;
      return written;
    }
    state_ = step->to;
    return {};
  }

  /// Number of records that could not be written.
  unsigned write_errors() const { return write_errors_; }

  State state() const { return state_; }
  const journal::Journal& journal() const { return journal_; }

 private:
  static constexpr journal::Role kRole =
      std::is_same_v<State, SourceState> ? journal::Began::SOURCE : journal::Began::DESTINATION;

  CommitLog(journal::Journal journal, State state) : journal_(std::move(journal)), state_(state) {}

  static Result<CommitLog> take(Result<journal::Journal> owned) {
    GCR_TRY(owned);
    GCR_ASSIGN(const AnyState state, replay(kRole, owned->records()));
    return CommitLog(std::move(*owned), std::get<State>(state));
  }

  Status write(journal::Record record) {
    GCR_TRY(fault::point("journal.append"));
    return journal_.append(std::move(record));
  }

  journal::Journal journal_;
  State state_;
  unsigned write_errors_ = 0;
};

using SourceLog = CommitLog<SourceState, SourceEvent>;
using DestinationLog = CommitLog<DestinationState, DestinationEvent>;

}  // namespace gcr::commit
