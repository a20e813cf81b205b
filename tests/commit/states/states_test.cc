// The tables themselves: properties that hold for every row. tests/model compares them with the
// model that is proven.
#include "migrate-agent/commit/states/states.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "migrate-agent/commit/states/outcome.h"
#include "tests/commit/states/support.h"

namespace gcr::commit::test {
namespace {

template <class Role>
class States : public ::testing::Test {};
using Roles = ::testing::Types<Source, Destination>;
TYPED_TEST_SUITE(States, Roles);

TYPED_TEST(States, NamesDiffer) {
  std::set<std::string_view> states, events;
  for (const auto state : all(TypeParam::kLastState)) states.insert(to_string(state));
  for (const auto event : all(TypeParam::kLastEvent)) events.insert(to_string(event));
  EXPECT_EQ(states.size(), static_cast<std::size_t>(TypeParam::kLastState));
  EXPECT_EQ(events.size(), static_cast<std::size_t>(TypeParam::kLastEvent));
}

TYPED_TEST(States, AnEventLeadsToOneState) {
  std::set<std::pair<typename TypeParam::State, typename TypeParam::Event>> seen;
  for (const auto& row : TypeParam::rows()) {
    EXPECT_TRUE(seen.emplace(row.from, row.event).second) << to_string(row.event);
    EXPECT_EQ(find(row.from, row.event), &row);
  }
}

TYPED_TEST(States, EveryEventHasARow) {
  for (const auto event : all(TypeParam::kLastEvent)) {
    EXPECT_TRUE(std::ranges::any_of(TypeParam::rows(), [&](const auto& row) {
      return row.event == event;
    })) << to_string(event);
  }
}

TYPED_TEST(States, EveryStepIsJournaled) {
  for (const auto& row : TypeParam::rows()) {
    EXPECT_NE(row.record, Record::BODY_NOT_SET) << to_string(row.event);
    EXPECT_NE(row.record, Record::kBegan) << to_string(row.event);
  }
}

TYPED_TEST(States, RecordDeterminesTheNextState) {
  for (const auto& row : TypeParam::rows()) {
    for (const auto& other : TypeParam::rows()) {
      if (row.from != other.from || row.record != other.record) continue;
      if (row.record == Record::kResolved && row.event != other.event) continue;
      EXPECT_EQ(row.to, other.to) << to_string(row.event) << ", " << to_string(other.event);
    }
  }
}

TYPED_TEST(States, FinishedIsWrittenOnlyBeforeAFinalState) {
  for (const auto& row : TypeParam::rows()) {
    const bool final = std::ranges::none_of(TypeParam::rows(),
                                            [&](const auto& next) { return next.from == row.to; });
    EXPECT_EQ(final, row.record == Record::kFinished) << to_string(row.to);
  }
}

TYPED_TEST(States, EveryStateIsReachedByReplayingAJournal) {
  std::map<typename TypeParam::State, std::vector<Record>> reached{{TypeParam::kFirst, {}}};
  for (std::size_t before = 0; before != reached.size();) {
    before = reached.size();
    for (const auto& row : TypeParam::rows()) {
      if (!reached.contains(row.from) || reached.contains(row.to)) continue;
      auto records = reached.at(row.from);
      records.push_back(record_of(row.record, to_string(row.event)));
      reached.emplace(row.to, std::move(records));
    }
  }
  for (const auto state : all(TypeParam::kLastState)) {
    ASSERT_TRUE(reached.contains(state)) << to_string(state);
    const auto told = TypeParam::replay(journal_of(TypeParam::kRole, reached.at(state)));
    ASSERT_TRUE(told) << told.error().message();
    EXPECT_EQ(*told, state);
  }
}

TYPED_TEST(States, ImpossibleJournalIsRefused) {
  const auto expect_refused = [](const std::vector<Record>& records) {
    const auto told = TypeParam::replay(records);
    ASSERT_FALSE(told);
    EXPECT_EQ(told.error().code(), Code::kDataLoss);
  };
  expect_refused({});
  expect_refused({record_of(Record::kAborted)});
  const auto other = TypeParam::kRole == journal::Began::SOURCE ? journal::Began::DESTINATION
                                                                : journal::Began::SOURCE;
  expect_refused(journal_of(other, {}));
  for (const auto kind : {Record::kFinished, Record::kCommitted, Record::kResolved}) {
    expect_refused(journal_of(TypeParam::kRole, {record_of(kind)}));
  }
  expect_refused(journal_of(TypeParam::kRole, {record_of(Record::kBegan)}));
  expect_refused(journal_of(TypeParam::kRole, {Record()}));
  expect_refused(journal_of(
      TypeParam::kRole,
      {record_of(Record::kAborted), record_of(Record::kFinished), record_of(Record::kAborted)}));
}

TEST(SourceStates, OnlyAnOperatorOrALostCopyUndoesTheCommit) {
  std::set<SourceState> after{SourceState::kCommitted};
  for (std::size_t before = 0; before != after.size();) {
    before = after.size();
    for (const auto& row : source_transitions()) {
      const bool leads_back =
          row.record == Record::kResolved || row.event == SourceEvent::kCopyLost;
      if (!leads_back && after.contains(row.from)) after.insert(row.to);
    }
  }
  EXPECT_EQ(after, (std::set{SourceState::kCommitted, SourceState::kConfirmed}));
}

TEST(Outcome, FollowsTheDecisionInTheJournal) {
  const auto outcome_after = [](std::vector<Record> records) {
    journal::Contents contents;
    contents.records = journal_of(journal::Began::SOURCE, std::move(records));
    return outcome_of(Result<journal::Contents>(std::move(contents)));
  };
  const Record awaiting = record_of(Record::kAwaiting);
  const Record committed = record_of(Record::kCommitted);
  const Record finished = record_of(Record::kFinished);
  using proto::OutcomeReply;
  EXPECT_EQ(outcome_after({}), OutcomeReply::UNDECIDED);
  EXPECT_EQ(outcome_after({awaiting}), OutcomeReply::UNDECIDED);
  EXPECT_EQ(outcome_after({awaiting, committed}), OutcomeReply::COMMITTED);
  EXPECT_EQ(outcome_after({awaiting, committed, finished}), OutcomeReply::COMMITTED);
  EXPECT_EQ(outcome_after({awaiting, record_of(Record::kAborted)}), OutcomeReply::ABORTED);
  EXPECT_EQ(outcome_after({awaiting, record_of(Record::kAborted), finished}),
            OutcomeReply::ABORTED);
  EXPECT_EQ(outcome_after({awaiting, committed, record_of(Record::kResolved, "resolved_run_here")}),
            OutcomeReply::ABORTED);
  EXPECT_EQ(
      outcome_after({awaiting, committed, record_of(Record::kResolved, "resolved_discard_here")}),
      OutcomeReply::COMMITTED);
}

TEST(Outcome, OutcomeOfTheCopyAnswersTheCommit) {
  const auto answer_after = [](std::vector<Record> records) {
    const auto journal = journal_of(journal::Began::DESTINATION, std::move(records));
    return commit_answer(replay(journal::Began::DESTINATION, journal).value(), journal);
  };
  const Record restored = record_of(Record::kRestored);
  const Record committed = record_of(Record::kCommitted);
  const Record discarded = record_of(Record::kResolved, "resolved_discard_here");
  Record finished = record_of(Record::kFinished);
  finished.mutable_finished()->set_pid(7);
  Record lost = record_of(Record::kAborted);
  EXPECT_EQ(answer_after({})->error().code(), Code::kProtocol);
  EXPECT_FALSE(answer_after({restored}).has_value());
  EXPECT_FALSE(answer_after({restored, committed}).has_value());
  EXPECT_EQ(answer_after({restored, committed, finished})->value().commit_reply().pid(), 7);
  EXPECT_EQ(answer_after({restored, discarded, finished})->error().code(), Code::kRefused);
  EXPECT_EQ(answer_after({restored, lost})->error().code(), Code::kRefused);
  lost.mutable_aborted()->set_copy_lost(true);
  EXPECT_TRUE(answer_after({restored, lost})->value().has_copy_lost());
  EXPECT_TRUE(answer_after({restored, committed, lost, finished})->value().has_copy_lost());
}

TEST(Outcome, OutcomeIsReportedToTheDaemon) {
  const Record committed = record_of(Record::kCommitted);
  Record aborted = record_of(Record::kAborted);
  aborted.mutable_aborted()->set_code("timeout");
  Record finished = record_of(Record::kFinished);
  finished.mutable_finished()->set_text("the end");
  const auto moved = report_of(std::vector{committed, finished});
  EXPECT_TRUE(moved.migrated());
  EXPECT_EQ(moved.message(), "the end");
  const auto undone = report_of(std::vector{committed, aborted, finished});
  EXPECT_FALSE(undone.migrated());
  EXPECT_EQ(undone.code(), "timeout");
}

TEST(Outcome, IsUnknownWithoutAValidJournal) {
  using proto::OutcomeReply;
  using Read = Result<journal::Contents>;
  EXPECT_EQ(outcome_of(Read(Error(Code::kNotFound, "no such file"))), OutcomeReply::UNKNOWN);
  journal::Contents damaged;
  damaged.records = journal_of(journal::Began::SOURCE, {record_of(Record::kAborted)});
  damaged.damage = Error(Code::kDataLoss, "slot 3");
  EXPECT_EQ(outcome_of(Read(damaged)), OutcomeReply::UNKNOWN);
  journal::Contents impossible;
  impossible.records = journal_of(journal::Began::SOURCE, {record_of(Record::kCommitted)});
  EXPECT_EQ(outcome_of(Read(impossible)), OutcomeReply::UNKNOWN);
}

TEST(Outcome, IsUndecidedWhileTheJournalIsUnreadable) {
  EXPECT_EQ(outcome_of(Result<journal::Contents>(Error(Code::kIo, "input/output error"))),
            proto::OutcomeReply::UNDECIDED);
}

}  // namespace
}  // namespace gcr::commit::test
