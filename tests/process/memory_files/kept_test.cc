// The list of files next to a journal, from which a recovery removes them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "migrate-agent/commit/journal/held_files.h"
#include "migrate-agent/process/memory_files/release.h"
#include "tests/process/memory_files/support.h"

namespace gcr::memory_files::test {
namespace {

namespace fs = std::filesystem;

class KeptFiles : public testing::Test {
 protected:
  KeptFiles() { fs::create_directory(state_.name("journal")); }

  journal::HeldFiles list_of(const std::string& made, const std::string& carried,
                             uid_t owner = 0) const {
    journal::HeldFiles files;
    journal::HeldFile& file = *files.add_files();
    const procfs::FileId id = id_of(made);
    file.set_device(id.first);
    file.set_inode(id.second);
    file.add_made(made);
    file.add_carried(carried);
    *file.mutable_owner() = rights_of(owner);
    return files;
  }

  const Directory state_;
  const Directory memory_;
  const fs::path journal_ = state_.name("journal/some-source");
};

TEST_F(KeptFiles, ListIsReadUntilItIsRemoved) {
  EXPECT_TRUE(journal::kept_files(journal_)->files().empty());
  const std::string path = memory_.write("file", "");
  ASSERT_TRUE(journal::keep_files(journal_, list_of("/one", "/two")));
  ASSERT_TRUE(journal::keep_files(journal_, list_of(path, "/other")));
  const auto kept = journal::kept_files(journal_);
  ASSERT_TRUE(kept);
  ASSERT_EQ(kept->files_size(), 1);
  EXPECT_EQ(kept->files(0).made(0), path);
  ASSERT_TRUE(journal::forget_files(journal_));
  EXPECT_TRUE(journal::kept_files(journal_)->files().empty());
  EXPECT_TRUE(journal::forget_files(journal_)) << "there are none";
}

TEST_F(KeptFiles, DamagedListIsAnError) {
  ASSERT_TRUE(journal::keep_files(journal_, list_of("/one", "/two")));
  std::ofstream(state_.name("files/some-source")) << "\xff\xff\xff";
  EXPECT_EQ(journal::kept_files(journal_).error().code(), Code::kDataLoss);
  EXPECT_FALSE(release(journal_, false, Which::kAll));
}

TEST_F(KeptFiles, ReleaseRemovesOnlyTheRequestedNames) {
  const std::string made = memory_.write("made", "");
  const std::string carried = memory_.name("carried");
  fs::create_hard_link(made, carried);
  ASSERT_TRUE(journal::keep_files(journal_, list_of(made, carried)));
  ASSERT_TRUE(release(journal_, false, Which::kMade));
  EXPECT_FALSE(fs::exists(made));
  EXPECT_TRUE(fs::exists(carried));
  EXPECT_TRUE(journal::kept_files(journal_)->files().empty());

  ASSERT_TRUE(journal::keep_files(journal_, list_of(carried, carried)));
  ASSERT_TRUE(release(journal_, true, Which::kAll));
  EXPECT_TRUE(fs::exists(carried)) << "the host was restarted: this is another file";
}

TEST_F(KeptFiles, NameOfAnotherFileStays) {
  const std::string made = memory_.write("made", "");
  const auto list = list_of(made, made);
  const std::string other = memory_.write("other", "theirs");
  fs::rename(other, made);
  ASSERT_TRUE(remove_names(list, Which::kAll));
  EXPECT_EQ(read(made), "theirs");
}

using HostileKeptFiles = KeptFiles;

TEST_F(HostileKeptFiles, NameThatItsOwnerMayNotRemoveStays) {
  const std::string theirs = memory_.write("theirs", "");
  const std::string own = memory_.write("own", "");
  ASSERT_EQ(::chown(own.c_str(), kUser, kUser), 0);
  ASSERT_EQ(::chmod(memory_.path().c_str(), 01777), 0);
  EXPECT_TRUE(remove_names(list_of(theirs, theirs, kUser), Which::kAll));
  EXPECT_TRUE(fs::exists(theirs)) << "the directory is sticky";
  ASSERT_EQ(::chmod(memory_.path().c_str(), 0700), 0);
  EXPECT_TRUE(remove_names(list_of(own, own, kUser), Which::kAll));
  EXPECT_TRUE(fs::exists(own)) << "they cannot reach it";
  ASSERT_EQ(::chmod(memory_.path().c_str(), 01777), 0);
  EXPECT_TRUE(remove_names(list_of(own, own, kUser), Which::kAll));
  EXPECT_FALSE(fs::exists(own));
}

TEST_F(HostileKeptFiles, WithoutAnOwnerNothingIsRemoved) {
  const std::string path = memory_.write("file", "");
  auto list = list_of(path, path);
  list.mutable_files(0)->clear_owner();
  EXPECT_TRUE(remove_names(list, Which::kAll));
  EXPECT_TRUE(fs::exists(path));
}

}  // namespace
}  // namespace gcr::memory_files::test
