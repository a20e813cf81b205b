// Leads the code through the steps of the model: random runs of commit.pml print every transition,
// restart and answer, and CommitLog, with journals in files, must do the same at every line.
// Together the runs use every row of both tables.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>

#include "migrate-agent/commit/journal/journal_files.h"
#include "migrate-agent/commit/states/outcome.h"
#include "tests/commit/states/support.h"

namespace gcr::commit::test {
namespace {

constexpr const char* kSimulate = GCR_MODEL_RUN " simulate 1 900";

/// One side of one migration, and the code's state machine for it.
template <class Role>
class Side {
 public:
  Side(const StateDir& state, const Uuid& migration) : state_(state), migration_(migration) {}

  /// "from event to record".
  void take(std::istream& line) {
    std::string from, event, to, record;
    line >> from >> event >> to >> record;
    const auto* row = row_of(from, event);
    ASSERT_NE(row, nullptr) << "the code has no row " << from << " " << event;
    EXPECT_EQ(to_string(row->to), to);
    EXPECT_EQ(name_of(row->record), record);
    begin();
    EXPECT_EQ(to_string(log_->state()), from);
    const Status taken = log_->advance(row->event, record_of(row->record, event));
    ASSERT_TRUE(taken) << taken.error().message();
    EXPECT_EQ(to_string(log_->state()), to);
    taken_.insert(from + " " + event);
  }

  /// The owner died; the next owner reads the journal.
  void restart(std::istream& line) {
    std::string state;
    line >> state;
    begin();
    log_.reset();
    auto opened = Role::Log::open(path(), journal::Lock::kTry);
    ASSERT_TRUE(opened) << opened.error().message();
    log_.emplace(std::move(*opened));
    EXPECT_EQ(to_string(log_->state()), state);
    restarted_.insert(state);
  }

  /// The last record never reached the disk.
  void lose() {
    log_.reset();
    const auto records = journal::read(path())->records.size();
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(records * journal::kSlotBytes));
    file << std::string(journal::kSlotBytes, '\0');
    ASSERT_TRUE(file.flush());
  }

  /// The journal as read by a process that does not own it.
  void answer(std::istream& line) {
    std::string state, outcome;
    line >> state >> outcome;
    begin();
    EXPECT_EQ(proto::OutcomeReply::Outcome_Name(outcome_of(journal::read(path()))), outcome);
    answered_.insert(outcome);
  }

  static std::set<std::string> missed() {
    std::set<std::string> rows;
    for (const auto& row : Role::rows()) {
      const std::string name =
          std::string(to_string(row.from)) + " " + std::string(to_string(row.event));
      if (!taken_.contains(name)) rows.insert(name);
    }
    return rows;
  }

  static inline std::set<std::string> taken_, restarted_, answered_;

 private:
  void begin() {
    if (log_ || std::filesystem::exists(path())) return;
    auto made = Role::Log::create(state_.path(), migration_, {});
    ASSERT_TRUE(made) << made.error().message();
    log_.emplace(std::move(*made));
  }

  static const auto* row_of(const std::string& from, const std::string& event) {
    const auto rows = Role::rows();
    const auto found = std::ranges::find_if(rows, [&](const auto& row) {
      return to_string(row.from) == from && to_string(row.event) == event;
    });
    return found == rows.end() ? nullptr : &*found;
  }

  std::filesystem::path path() const {
    return journal::path_of(state_.path(), migration_, Role::kRole);
  }

  const StateDir& state_;
  Uuid migration_;
  std::optional<typename Role::Log> log_;
};

/// Both sides of one random run.
struct Migration {
  StateDir state;
  Uuid id = Uuid::random();
  Side<Source> source{state, id};
  Side<Destination> destination{state, id};

  void follow(std::istream& line, const std::string& kind) {
    std::string side;
    line >> side;
    const auto apply = [&](auto& which) {
      if (kind == "T") return which.take(line);
      if (kind == "R") return which.restart(line);
      if (kind == "L") return which.lose();
      which.answer(line);
    };
    if (side == "source") return apply(source);
    ASSERT_EQ(side, "destination");
    apply(destination);
  }
};

TEST(Walk, CodeHasExactlyTheStepsOfTheModel) {
  const std::unique_ptr<FILE, int (*)(FILE*)> runs(::popen(kSimulate, "r"), &::pclose);
  ASSERT_NE(runs, nullptr);
  std::unique_ptr<Migration> migration;
  char text[256];
  int lines = 0;
  while (std::fgets(text, sizeof(text), runs.get()) != nullptr) {
    std::istringstream line(text);
    std::string kind;
    line >> kind;
    if (kind == "S") {
      migration = std::make_unique<Migration>();
      continue;
    }
    ASSERT_TRUE(kind == "T" || kind == "R" || kind == "L" || kind == "O") << text;
    ASSERT_NE(migration, nullptr);
    SCOPED_TRACE(text);
    migration->follow(line, kind);
    ASSERT_FALSE(HasFailure());
    ++lines;
  }
  std::cout << "walked " << lines << " lines\n";
  const std::set<std::string> none;
  EXPECT_EQ(Side<Source>::missed(), none);
  EXPECT_EQ(Side<Destination>::missed(), none);
  EXPECT_EQ(Side<Source>::answered_, (std::set<std::string>{"UNDECIDED", "COMMITTED", "ABORTED"}));
  for (const char* state : {"working", "awaiting", "committed", "aborted"}) {
    EXPECT_TRUE(Side<Source>::restarted_.contains(state)) << state;
  }
  for (const char* state : {"building", "restored", "committed", "aborted"}) {
    EXPECT_TRUE(Side<Destination>::restarted_.contains(state)) << state;
  }
}

}  // namespace
}  // namespace gcr::commit::test
