// What tests of the commit share: a state_dir per test, and records of any kind.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "migrate-agent/commit/states/commit_log.h"

namespace gcr::commit::test {

using journal::Record;

/// A new directory, removed with everything in it.
class StateDir {
 public:
  StateDir();
  StateDir(const StateDir&) = delete;
  StateDir& operator=(const StateDir&) = delete;
  ~StateDir();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// A record with a body of this kind; a Resolved has the decision of `event`.
Record record_of(Record::BodyCase kind, std::string_view event = {});

/// The kind's name as the proto file has it: "KeeperStarted".
std::string_view name_of(Record::BodyCase kind);

/// A Began of this role, followed by these records.
std::vector<Record> journal_of(journal::Role role, std::vector<Record> records);

/// Types and functions of one role, so that a test can be written once for both.
struct Source {
  using State = SourceState;
  using Event = SourceEvent;
  using Log = SourceLog;
  static constexpr journal::Role kRole = journal::Began::SOURCE;
  static constexpr State kFirst = State::kWorking, kLastState = State::kResumed;
  static constexpr Event kLastEvent = Event::kEnded;
  static auto rows() { return source_transitions(); }
  static auto replay(std::span<const Record> records) { return replay_source(records); }
};

struct Destination {
  using State = DestinationState;
  using Event = DestinationEvent;
  using Log = DestinationLog;
  static constexpr journal::Role kRole = journal::Began::DESTINATION;
  static constexpr State kFirst = State::kBuilding, kLastState = State::kGone;
  static constexpr Event kLastEvent = Event::kResolvedDiscardHere;
  static auto rows() { return destination_transitions(); }
  static auto replay(std::span<const Record> records) { return replay_destination(records); }
};

/// All values of an enum but kInvalid.
template <class Enum>
std::vector<Enum> all(Enum last) {
  std::vector<Enum> values;
  for (int value = 1; value <= static_cast<int>(last); ++value) {
    values.push_back(static_cast<Enum>(value));
  }
  return values;
}

}  // namespace gcr::commit::test
