// Which files a job takes along, and the names that they have for a dump.
#include "migrate-agent/memory_files/outgoing.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "migrate-agent/memory_files/release.h"
#include "tests/memory_files/support.h"

namespace gcr::memory_files::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

/// Descriptors and mappings of this process are what the member has.
class OutgoingFiles : public testing::Test {
 protected:
  Outgoing look() {
    auto named = process::named_files(::getpid(), false);
    EXPECT_TRUE(named);
    named_ = std::move(*named);
    // The files of this test alone: whoever starts it may have others in memory.
    std::erase_if(named_, [this](const process::NamedFile& file) {
      return !file.fact.path().starts_with(directory_.path().native());
    });
    const Member member{::getpid(), named_};
    return find({&member, 1});
  }

  UniqueFd open(const std::string& leaf, int flags = O_RDWR | O_CREAT | O_EXCL) const {
    return UniqueFd(::open(directory_.name(leaf).c_str(), flags | O_CLOEXEC, 0640));
  }

  static UniqueMapping map(const UniqueFd& file) {
    EXPECT_EQ(::ftruncate(file.get(), 4096), 0);
    return {::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0), 4096};
  }

  std::string reasons(const Outgoing& found) { return preflight::reason_of(found.findings.list()); }

  const Directory directory_;
  std::vector<process::NamedFile> named_;
};

TEST_F(OutgoingFiles, OneThatTheJobWritesGoesWithAllItsNamesAndOneThatItReadsDoesNot) {
  const UniqueFd written = open("written");
  const UniqueFd read = [this] {
    directory_.write("read", "content");
    return open("read", O_RDONLY);
  }();
  ASSERT_EQ(::ftruncate(written.get(), 100), 0);
  ASSERT_EQ(::link(directory_.name("written").c_str(), directory_.name("link").c_str()), 0);
  const Outgoing found = look();
  EXPECT_THAT(found.findings.list(), IsEmpty());
  ASSERT_THAT(found.files, SizeIs(1));
  const proto::MemoryFile& file = found.files.front().fact;
  EXPECT_THAT(file.names(),
              UnorderedElementsAre(directory_.name("link"), directory_.name("written")));
  EXPECT_EQ(file.size_bytes(), 100u);
  EXPECT_EQ(file.mode(), S_IFREG | 0640u);
  EXPECT_THAT(file.opened_as(), IsEmpty());
}

/// As sem_open() of glibc makes it: mapped under one name, linked to another, and the first
/// removed.
TEST_F(OutgoingFiles, OneWhoseOpenedNameIsGoneHasItForTheDumpAlone) {
  UniqueFd file = open("first");
  const UniqueMapping mapping = map(file);
  file.reset();
  ASSERT_EQ(::rename(directory_.name("first").c_str(), directory_.name("moved").c_str()), 0);
  ASSERT_EQ(::link(directory_.name("moved").c_str(), directory_.name("last").c_str()), 0);
  ASSERT_EQ(::unlink(directory_.name("moved").c_str()), 0);
  const Outgoing found = look();
  ASSERT_THAT(found.files, SizeIs(1)) << reasons(found);
  const proto::MemoryFile& fact = found.files.front().fact;
  EXPECT_THAT(fact.names(), ElementsAre(directory_.name("last")));
  ASSERT_THAT(fact.opened_as(), ElementsAre(directory_.name("moved")));

  Renamed renamed;
  const journal::HeldFiles wanted = wanted_names(found, renamed);
  const std::string for_dump = directory_.name("moved") + " (deleted)";
  EXPECT_THAT(renamed, ElementsAre(std::pair(for_dump, directory_.name("moved"))));
  ASSERT_TRUE(give_names(found));
  EXPECT_EQ(id_of(for_dump), id_of(directory_.name("last")));
  EXPECT_TRUE(give_names(found)) << "twice is no harm";
  EXPECT_THAT(look().files.front().fact.names(), ElementsAre(directory_.name("last")));
  ASSERT_TRUE(remove_names(wanted, Which::kMade, {::getpid()}));
  EXPECT_EQ(id_of(for_dump), procfs::FileId());
  EXPECT_NE(id_of(directory_.name("last")), procfs::FileId());
}

TEST_F(OutgoingFiles, ATakenNameForTheDumpIsNotReplaced) {
  const UniqueFd file = open("first");
  ASSERT_EQ(::link(directory_.name("first").c_str(), directory_.name("last").c_str()), 0);
  ASSERT_EQ(::unlink(directory_.name("first").c_str()), 0);
  const Outgoing found = look();
  ASSERT_THAT(found.files, SizeIs(1));
  const std::string theirs = directory_.write("first (deleted)", "theirs");
  EXPECT_FALSE(give_names(found));
  EXPECT_EQ(read(theirs), "theirs");
}

TEST_F(OutgoingFiles, SharedMemoryWithANameElsewhereIsRefused) {
  const UniqueFd file = open("file");
  const UniqueMapping mapping = map(file);
  const Directory other;
  ASSERT_EQ(::link(directory_.name("file").c_str(), other.name("file").c_str()), 0);
  const Outgoing found = look();
  EXPECT_THAT(found.files, IsEmpty());
  EXPECT_THAT(reasons(found), HasSubstr("has 2 names, of which 1 are known"));
}

TEST_F(OutgoingFiles, TooLargeAFileIsRefused) {
  const UniqueFd file = open("file");
  const UniqueMapping mapping = map(file);
  ASSERT_EQ(::ftruncate(file.get(), kMaxFileBytes + 4096), 0);
  EXPECT_THAT(reasons(look()), HasSubstr("are allowed"));
}

TEST_F(OutgoingFiles, WhatAnOutsiderHasTooStaysAndBothAreNamed) {
  const UniqueFd file = open("file");
  const UniqueMapping mapping = map(file);
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const UniqueFd reading(ready[0]);
  UniqueFd writing(ready[1]);
  const std::string path = directory_.name("file");
  const pid_t outsider = ::fork();
  if (outsider == 0) {
    ::dup2(writing.get(), 3);
    ::execl(GCR_HELD_PROGRAM, GCR_HELD_PROGRAM, "open", path.c_str(), nullptr);
    ::_exit(127);
  }
  writing.reset();
  char byte = 0;
  (void)::read(reading.get(), &byte, 1);  // its end: the program is ready
  const Outgoing found = look();
  ::kill(outsider, SIGKILL);
  ::waitpid(outsider, nullptr, 0);
  EXPECT_THAT(found.files, IsEmpty());
  EXPECT_THAT(reasons(found), HasSubstr("process " + std::to_string(::getpid())));
  EXPECT_THAT(reasons(found),
              HasSubstr("process " + std::to_string(outsider) + " (held_program) has too"));
  EXPECT_THAT(found.shared_with, testing::Contains(testing::Key(path)));
  EXPECT_THAT(look().files, SizeIs(1)) << "it is gone";
}

}  // namespace
}  // namespace gcr::memory_files::test
