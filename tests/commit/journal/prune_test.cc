// Which journals are kept, and for how long.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <chrono>
#include <fstream>

#include "migrate-agent/commit/journal/journal_files.h"
#include "src/base/unique_fd.h"
#include "tests/commit/journal/support.h"

namespace gcr::journal::test {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

class Prune : public testing::Test {
 protected:
  /// A finished journal without an owner.
  std::filesystem::path finished_journal(const std::string& ordered_by = "operator") {
    Journal journal = begin(dir_.path(), Uuid::random(), ordered_by);
    EXPECT_TRUE(journal.append(finished()));
    return journal.path();
  }

  std::size_t count() { return list(dir_.path()).value().size(); }

  /// Everything finished is older than that: it was written before the call.
  static constexpr milliseconds kNoAge{-1000};

  StateDir dir_;
};

TEST_F(Prune, EmptyDirectoryIsNoError) {
  EXPECT_EQ(prune(dir_.path(), {.age = kNoAge, .of_all = 0}).value(), 0u);
}

TEST_F(Prune, OldestAreRemovedFirst) {
  std::vector<std::filesystem::path> paths;
  for (int i = 0; i < 4; ++i) {
    paths.push_back(finished_journal());
    const auto written = read(paths.back()).value().records.back().unix_ms();
    while (std::chrono::system_clock::now().time_since_epoch() < milliseconds(written + 1)) {
    }
  }
  EXPECT_EQ(prune(dir_.path(), {.age = kNoAge, .of_all = 2}).value(), 2u);
  EXPECT_FALSE(std::filesystem::exists(paths[0]));
  EXPECT_FALSE(std::filesystem::exists(paths[1]));
  EXPECT_TRUE(std::filesystem::exists(paths[2]));
  EXPECT_TRUE(std::filesystem::exists(paths[3]));
}

TEST_F(Prune, YoungOnesStayInAnyNumber) {
  for (int i = 0; i < 3; ++i) finished_journal();
  EXPECT_EQ(prune(dir_.path(), {.age = hours(1), .of_all = 0}).value(), 0u);
  EXPECT_EQ(count(), 3u);
}

TEST_F(Prune, ExcessOfOneUserDoesNotEvictOthersJournals) {
  const auto bobs = finished_journal("bob");
  for (int i = 0; i < 5; ++i) finished_journal("alice");
  const Retention kept{.of_one_user = 2, .age = hours(1), .of_all = 0};
  EXPECT_EQ(prune(dir_.path(), kept).value(), 3u);
  EXPECT_TRUE(std::filesystem::exists(bobs));
  EXPECT_EQ(count(), 3u);
  EXPECT_EQ(prune(dir_.path(), kept).value(), 0u);
}

TEST_F(Prune, UnfinishedOnesStay) {
  begin(dir_.path());
  EXPECT_TRUE(begin(dir_.path()).append(aborted("because")));
  EXPECT_EQ(prune(dir_.path(), {.age = kNoAge, .of_all = 0}).value(), 0u);
  EXPECT_EQ(count(), 2u);
}

TEST_F(Prune, OwnedOnesStayUntilTheirOwnersEnd) {
  const auto path = finished_journal();
  {
    const auto owner = Journal::open(path, Lock::kTry);
    EXPECT_EQ(prune(dir_.path(), {.age = kNoAge, .of_all = 0}).value(), 0u);
  }
  EXPECT_EQ(prune(dir_.path(), {.age = kNoAge, .of_all = 0}).value(), 1u);
  EXPECT_EQ(count(), 0u);
}

TEST_F(Prune, DamagedOnesStay) {
  const auto path = finished_journal();
  auto bytes = bytes_of(path);
  bytes.pop_back();
  write_bytes(path, bytes);
  EXPECT_EQ(prune(dir_.path(), {.age = kNoAge, .of_all = 0}).value(), 0u);
  EXPECT_EQ(count(), 1u);
}

TEST_F(Prune, JournalUnderConstructionStays) {
  const auto directory = finished_journal().parent_path();
  const auto made = directory / (Uuid::random().to_string() + "-source.new");
  const UniqueFd maker(::open(made.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::flock(maker.get(), LOCK_EX), 0);
  ASSERT_TRUE(prune(dir_.path(), {.age = kNoAge, .of_all = 0}));
  EXPECT_TRUE(std::filesystem::exists(made));
}

TEST_F(Prune, OldLeftoversAreRemovedAndForeignFilesStay) {
  const auto directory = finished_journal().parent_path();
  const auto left = directory / (Uuid::random().to_string() + "-source.new");
  std::ofstream(left) << "not yet a journal";
  std::ofstream(directory / "notes") << "foreign";
  EXPECT_EQ(count(), 1u);
  ASSERT_TRUE(prune(dir_.path(), {.age = hours(1), .of_all = 0}));
  EXPECT_TRUE(std::filesystem::exists(left));
  EXPECT_EQ(prune(dir_.path(), {.age = kNoAge, .of_all = 0}).value(), 1u);
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_TRUE(std::filesystem::exists(directory / "notes"));
}

}  // namespace
}  // namespace gcr::journal::test
