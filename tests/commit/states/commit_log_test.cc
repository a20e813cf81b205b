// A state machine on top of a journal in a file.
#include "migrate-agent/commit/states/commit_log.h"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <type_traits>

#include "tests/commit/states/support.h"

namespace gcr::commit::test {
namespace {

template <class Role>
class CommitLogOf : public ::testing::Test {
 protected:
  /// A log that was brought to `state` on the shortest path.
  typename Role::Log log_in(typename Role::State state) {
    auto log = Role::Log::create(state_.path(), Uuid::random(), {});
    if (!log) throw std::runtime_error(log.error().message());
    for (const auto& row : way_to(state)) {
      const Status taken = log->advance(row.event, record_of(row.record, to_string(row.event)));
      if (!taken) throw std::runtime_error(taken.error().message());
    }
    return std::move(*log);
  }

  using Rows = std::vector<typename decltype(Role::rows())::value_type>;

  static Rows way_to(typename Role::State state) {
    std::map<typename Role::State, Rows> ways{{Role::kFirst, {}}};
    while (!ways.contains(state)) {
      const auto known = ways;
      for (const auto& row : Role::rows()) {
        if (!known.contains(row.from)) continue;
        Rows way = known.at(row.from);
        way.push_back(row);
        ways.emplace(row.to, std::move(way));
      }
    }
    return ways.at(state);
  }

  StateDir state_;
};

using Roles = ::testing::Types<Source, Destination>;
TYPED_TEST_SUITE(CommitLogOf, Roles);

TYPED_TEST(CommitLogOf, BeginsInTheFirstState) {
  const auto log = this->log_in(TypeParam::kFirst);
  EXPECT_EQ(log.state(), TypeParam::kFirst);
  EXPECT_EQ(log.journal().role(), TypeParam::kRole);
}

TYPED_TEST(CommitLogOf, AcceptsOnlyTheStepsOfTheTable) {
  for (const auto state : all(TypeParam::kLastState)) {
    for (const auto event : all(TypeParam::kLastEvent)) {
      auto log = this->log_in(state);
      const std::size_t records = log.journal().records().size();
      const auto* row = find(state, event);
      const auto kind = row != nullptr ? row->record : Record::kAborted;
      const Status taken = log.advance(event, record_of(kind, to_string(event)));
      EXPECT_EQ(taken.has_value(), row != nullptr) << to_string(state) << to_string(event);
      EXPECT_EQ(log.state(), row != nullptr ? row->to : state);
      EXPECT_EQ(log.journal().records().size(), records + (row != nullptr ? 1 : 0));
      if (taken) continue;
      EXPECT_EQ(taken.error().code(), Code::kInvalidArgument);
    }
  }
}

TYPED_TEST(CommitLogOf, AcceptsOnlyTheRecordOfTheTable) {
  auto log = this->log_in(TypeParam::kFirst);
  using Event = typename TypeParam::Event;
  for (const Record& record : {Record(), record_of(Record::kFinished)}) {
    const Status taken = log.advance(Event::kFailed, record);
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(log.state(), TypeParam::kFirst);
  EXPECT_EQ(log.journal().records().size(), 1U);
}

TYPED_TEST(CommitLogOf, NextOwnerFindsTheSameState) {
  for (const auto state : all(TypeParam::kLastState)) {
    std::filesystem::path path;
    {
      const auto log = this->log_in(state);
      path = log.journal().path();
      const auto second = TypeParam::Log::open(path, journal::Lock::kTry);
      ASSERT_FALSE(second) << "two owners";
      EXPECT_EQ(second.error().code(), Code::kUnavailable);
    }
    const auto successor = TypeParam::Log::open(path, journal::Lock::kTry);
    ASSERT_TRUE(successor) << successor.error().message();
    EXPECT_EQ(successor->state(), state);
  }
}

TYPED_TEST(CommitLogOf, JournalOfTheOtherRoleIsNotOpened) {
  using Other = std::conditional_t<std::is_same_v<TypeParam, Source>, Destination, Source>;
  std::filesystem::path path;
  { path = this->log_in(TypeParam::kFirst).journal().path(); }
  const auto opened = Other::Log::open(path, journal::Lock::kTry);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), Code::kDataLoss);
}

TEST(SourceLog, StepThatCannotBeJournaledIsNotTaken) {
  const StateDir state;
  auto log = SourceLog::create(state.path(), Uuid::random(), {});
  ASSERT_TRUE(log);
  Status noted;
  while (noted) noted = log->advance(SourceEvent::kDetaching, record_of(Record::kDetaching));
  EXPECT_EQ(noted.error().code(), Code::kResourceExhausted);
  const Status asked = log->advance(SourceEvent::kAskRestore, record_of(Record::kAwaiting));
  EXPECT_FALSE(asked);
  EXPECT_EQ(log->state(), SourceState::kWorking);
}

}  // namespace
}  // namespace gcr::commit::test
