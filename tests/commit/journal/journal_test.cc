// One journal and its owner: what is durable, who may write, and what is read back.
#include "migrate-agent/commit/journal/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>

#include "migrate-agent/commit/journal/journal_files.h"
#include "tests/commit/journal/support.h"

namespace gcr::journal::test {
namespace {

using testing::HasSubstr;

class JournalTest : public testing::Test {
 protected:
  StateDir dir_;
  const Uuid migration_ = Uuid::random();
  const std::filesystem::path path_ = path_of(dir_.path(), migration_, Began::SOURCE);
};

mode_t mode_of(const std::filesystem::path& path) {
  struct stat facts {};
  return ::stat(path.c_str(), &facts) == 0 ? facts.st_mode & 07777 : 0;
}

TEST_F(JournalTest, BeginsWithTheBeganRecord) {
  const Journal journal = begin(dir_.path(), migration_);
  EXPECT_EQ(journal.path(), path_);
  EXPECT_EQ(path_.filename(), migration_.to_string() + "-source");
  EXPECT_EQ(journal.migration(), migration_);
  EXPECT_EQ(journal.role(), Began::SOURCE);
  EXPECT_EQ(journal.began().boot_id(), boot_id().value());
  EXPECT_EQ(journal.began().command(), "python3 serve.py");
  EXPECT_EQ(journal.records().size(), 1u);
}

TEST_F(JournalTest, BeginsWithAllGivenRecords) {
  ASSERT_TRUE(Journal::create(dir_.path(), migration_, Began::SOURCE, {},
                              {keeper_started(5), committed()}));
  const auto journal = Journal::open(path_, Lock::kTry);
  ASSERT_TRUE(journal) << journal.error().message();
  ASSERT_EQ(journal->records().size(), 3u);
  EXPECT_EQ(journal->records()[1].keeper_started().keeper().pid(), 5);
  EXPECT_TRUE(journal->records()[2].has_committed());
}

TEST_F(JournalTest, IsReadableByRootOnly) {
  const Journal journal = begin(dir_.path(), migration_);
  EXPECT_EQ(mode_of(journal.path()), 0600u);
  EXPECT_EQ(mode_of(directory_of(dir_.path())), 0700u);
}

TEST_F(JournalTest, CreatesAMissingStateDir) {
  const Journal journal = begin(dir_.path() / "a" / "b", migration_);
  EXPECT_EQ(list(dir_.path() / "a" / "b").value().size(), 1u);
}

TEST_F(JournalTest, RecordsAreReadInOrderWithTheirTime) {
  const auto before = std::chrono::system_clock::now();
  {
    Journal journal = begin(dir_.path(), migration_);
    ASSERT_TRUE(journal.append(keeper_started(5)));
    ASSERT_TRUE(journal.append(keeper_started(6)));
    ASSERT_TRUE(journal.append(committed()));
  }
  const auto journal = Journal::open(path_, Lock::kTry);
  ASSERT_TRUE(journal) << journal.error().message();
  ASSERT_EQ(journal->records().size(), 4u);
  EXPECT_TRUE(journal->has(Record::kCommitted));
  EXPECT_FALSE(journal->has(Record::kAborted));
  EXPECT_EQ(journal->last(Record::kKeeperStarted)->keeper_started().keeper().pid(), 6);
  for (const Record& record : journal->records()) {
    using std::chrono::milliseconds;
    EXPECT_GE(milliseconds(record.unix_ms()),
              std::chrono::floor<milliseconds>(before.time_since_epoch()));
    EXPECT_LE(milliseconds(record.unix_ms()), std::chrono::system_clock::now().time_since_epoch());
  }
}

TEST_F(JournalTest, NextOwnerAppendsToIt) {
  { const Journal journal = begin(dir_.path(), migration_); }
  ASSERT_TRUE(Journal::open(path_, Lock::kTry).value().append(aborted("the peer is gone")));
  ASSERT_TRUE(Journal::open(path_, Lock::kTry).value().append(finished()));
  const auto contents = read(path_);
  ASSERT_TRUE(contents && !contents->damage);
  EXPECT_EQ(contents->records.size(), 3u);
  EXPECT_FALSE(unfinished(contents->records));
}

TEST_F(JournalTest, ReportsWhetherTheJobIsSuspended) {
  std::vector<Record> records(1);
  const auto then = [&records](auto fill) {
    fill(records.emplace_back());
    return suspended(records);
  };
  records.front().mutable_began();
  EXPECT_FALSE(suspended(records));
  EXPECT_FALSE(then([](Record& record) { record.mutable_keeper_started(); }));
  EXPECT_TRUE(then([](Record& record) { record.mutable_suspended(); }));
  EXPECT_TRUE(then([](Record& record) { record.mutable_keeper_started(); }));
  EXPECT_FALSE(then([](Record& record) { record.mutable_resuming(); }));
  EXPECT_FALSE(then([](Record& record) { record.mutable_finished(); }));
}

TEST_F(JournalTest, InMemoryRecordsEqualTheFile) {
  Journal journal = begin(dir_.path(), migration_);
  ASSERT_TRUE(journal.append(aborted("caf\xff" + std::string(1000, 'x'))));
  const auto contents = read(path_);
  ASSERT_EQ(contents->records.size(), 2u);
  EXPECT_EQ(contents->records.back().SerializeAsString(),
            journal.records().back().SerializeAsString());
  EXPECT_THAT(contents->records.back().aborted().message(), HasSubstr("caf?xxx"));
}

TEST_F(JournalTest, TextsOfAnyLengthAreAccepted) {
  const std::string endless(100'000, '\xe9');
  Began began = source_began();
  began.set_boot_id(endless);
  began.set_peer(endless);
  began.set_peer_name(endless);
  began.set_command(endless);
  ASSERT_TRUE(Journal::create(dir_.path(), migration_, Began::SOURCE, began));
  EXPECT_FALSE(read(path_).value().damage);
}

TEST_F(JournalTest, FullJournalIsAnError) {
  Journal journal = begin(dir_.path(), migration_);
  while (journal.records().size() < kSlots - 1) ASSERT_TRUE(journal.append(keeper_started(5)));
  EXPECT_EQ(journal.append(committed()).error().code(), Code::kResourceExhausted);
  EXPECT_EQ(read(path_).value().records.size(), kSlots - 1);
}

TEST_F(JournalTest, EmptyRecordIsRefused) {
  Journal journal = begin(dir_.path(), migration_);
  EXPECT_EQ(journal.append(Record()).error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(journal.append(committed()));
}

TEST_F(JournalTest, EachRoleOfAMigrationHasItsOwn) {
  const Journal source = begin(dir_.path(), migration_);
  const auto destination = Journal::create(dir_.path(), migration_, Began::DESTINATION, Began());
  ASSERT_TRUE(destination);
  EXPECT_EQ(destination->path().filename(), migration_.to_string() + "-destination");
  EXPECT_EQ(list(dir_.path()).value().size(), 2u);
}

TEST_F(JournalTest, CannotBeBegunTwice) {
  Journal journal = begin(dir_.path(), migration_);
  ASSERT_TRUE(journal.append(committed()));
  const auto again = Journal::create(dir_.path(), migration_, Began::SOURCE, source_began());
  EXPECT_EQ(again.error().code(), Code::kRefused);
  EXPECT_EQ(read(path_).value().records.size(), 2u);
  EXPECT_EQ(std::ranges::distance(std::filesystem::directory_iterator(path_.parent_path())), 1);
}

TEST_F(JournalTest, NeedsARole) {
  const auto journal =
      Journal::create(dir_.path(), migration_, Began::ROLE_INVALID, source_began());
  EXPECT_EQ(journal.error().code(), Code::kInvalidArgument);
}

TEST_F(JournalTest, NextOwnerRemovesATornRecord) {
  const auto whole = [&] {
    Journal journal = begin(dir_.path(), migration_);
    EXPECT_TRUE(journal.append(keeper_started(5)));
    const auto bytes = bytes_of(path_);
    EXPECT_TRUE(journal.append(committed()));
    return bytes;
  }();
  auto torn = bytes_of(path_);
  torn[4 * kSlotBytes - 1] = std::byte{0};
  write_bytes(path_, torn);
  EXPECT_TRUE(read(path_).value().torn);
  EXPECT_EQ(bytes_of(path_), torn);  // reading changes nothing
  auto journal = Journal::open(path_, Lock::kTry);
  ASSERT_TRUE(journal) << journal.error().message();
  EXPECT_FALSE(journal->has(Record::kCommitted));
  EXPECT_EQ(bytes_of(path_), whole);
  ASSERT_TRUE(journal->append(aborted("torn")));
  EXPECT_FALSE(read(path_).value().torn);
}

TEST_F(JournalTest, DamagedOneIsNotOpenedAndStaysUnchanged) {
  { const Journal journal = begin(dir_.path(), migration_); }
  auto bytes = bytes_of(path_);
  bytes[kSlotBytes + 20] ^= std::byte{1};
  write_bytes(path_, bytes);
  const auto journal = Journal::open(path_, Lock::kTry);
  EXPECT_EQ(journal.error().code(), Code::kDataLoss);
  EXPECT_THAT(journal.error().message(), HasSubstr(path_.native()));
  EXPECT_THAT(journal.error().message(), HasSubstr("at byte 4096"));
  EXPECT_EQ(bytes_of(path_), bytes);
}

TEST_F(JournalTest, NameThatContradictsTheContentIsDamage) {
  { const Journal journal = begin(dir_.path(), migration_); }
  const auto other_role = path_of(dir_.path(), migration_, Began::DESTINATION);
  std::filesystem::copy_file(path_, other_role);
  EXPECT_EQ(Journal::open(other_role, Lock::kTry).error().code(), Code::kDataLoss);
  const auto other_id = path_of(dir_.path(), Uuid::random(), Began::SOURCE);
  std::filesystem::copy_file(path_, other_id);
  EXPECT_EQ(Journal::open(other_id, Lock::kTry).error().code(), Code::kDataLoss);
  EXPECT_TRUE(read(other_id).value().damage);
  const auto no_journals_name = dir_.path() / "copy";
  std::filesystem::copy_file(path_, no_journals_name);
  EXPECT_FALSE(read(no_journals_name).value().damage);
}

TEST_F(JournalTest, NonRegularFilesAreNotRead) {
  ASSERT_EQ(::mkfifo((dir_.path() / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(read(dir_.path() / "fifo").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(read(dir_.path() / "nothing").error().code(), Code::kNotFound);
  EXPECT_EQ(Journal::open(path_, Lock::kTry).error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace gcr::journal::test
