// Which files move with a job, and which names they get for a dump.
#include "migrate-agent/process/memory_files/outgoing.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <optional>
#include <stdexcept>

#include "migrate-agent/process/memory_files/release.h"
#include "tests/process/memory_files/support.h"

namespace gcr::memory_files::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

/// A process that executes these commands (tests/process/inspect/held_program.cc), until the object
/// is destroyed.
class Held {
 public:
  /// It has executed them when the constructor returns.
  explicit Held(std::vector<std::string> words, uid_t user = 0) {
    int ready[2];
    if (::pipe2(ready, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    const UniqueFd reading(ready[0]);
    UniqueFd writing(ready[1]);
    words.insert(words.begin(), GCR_HELD_PROGRAM);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      const UniqueFd kept(::fcntl(writing.get(), F_DUPFD, 100));
      ::dup2(kept.get(), 3);
      ::close_range(4, ~0u, 0);
      if (::setgroups(0, nullptr) == 0 && ::setgid(user) == 0 && ::setuid(user) == 0) {
        ::execv(GCR_HELD_PROGRAM, argv.data());
      }
      ::_exit(127);
    }
    writing.reset();
    char byte = 0;
    (void)::read(reading.get(), &byte, 1);  // end of file: the program is ready, or dead
    if (::waitpid(pid_, nullptr, WNOHANG) != 0) throw std::runtime_error("the program has ended");
  }
  ~Held() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

class OutgoingFiles : public testing::Test {
 protected:
  /// Without others, this process is the member, with its descriptors and mappings. `meanwhile`
  /// runs after names were read and before anything else.
  Outgoing find_outgoing_files(
      const std::vector<pid_t>& pids = {::getpid()},
      const std::function<void()>& meanwhile = [] {}) {
    std::vector<std::vector<process::NamedFile>> named;
    for (const pid_t pid : pids) {
      auto files = process::named_files(pid, false);
      EXPECT_TRUE(files);
      // Only files of this test: the process that starts it may have others in memory.
      std::erase_if(*files, [this](const process::NamedFile& file) {
        return !file.fact.path().starts_with(directory_.path().native());
      });
      named.push_back(std::move(*files));
    }
    std::vector<Member> members;
    for (std::size_t i = 0; i < pids.size(); ++i) members.push_back({pids[i], named[i]});
    meanwhile();
    return memory_files::find(members);
  }

  UniqueFd open(const std::string& leaf, int flags = O_RDWR | O_CREAT | O_EXCL) const {
    return UniqueFd(::open(directory_.name(leaf).c_str(), flags | O_CLOEXEC, 0640));
  }

  static UniqueMapping map(const UniqueFd& file) {
    EXPECT_EQ(::ftruncate(file.get(), 4096), 0);
    return {::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0), 4096};
  }

  std::string reasons(const Outgoing& found) { return findings::reason_of(found.findings.list()); }

  /// A file owned by that user.
  std::string write(const std::string& leaf, uid_t user, mode_t mode) const {
    const std::string path = directory_.write(leaf, "content");
    EXPECT_EQ(::chown(path.c_str(), user, user), 0);
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }

  const Directory directory_;
};

TEST_F(OutgoingFiles, OnlyWrittenFilesMoveAndWithAllNames) {
  const UniqueFd written = open("written");
  const UniqueFd read = [this] {
    directory_.write("read", "content");
    return open("read", O_RDONLY);
  }();
  ASSERT_EQ(::ftruncate(written.get(), 100), 0);
  ASSERT_EQ(::link(directory_.name("written").c_str(), directory_.name("link").c_str()), 0);
  const Outgoing found = find_outgoing_files();
  EXPECT_THAT(found.findings.list(), IsEmpty());
  ASSERT_THAT(found.files, SizeIs(1));
  const proto::MemoryFile& file = found.files.front().fact;
  EXPECT_THAT(file.names(),
              UnorderedElementsAre(directory_.name("link"), directory_.name("written")));
  EXPECT_EQ(file.size_bytes(), 100u);
  EXPECT_EQ(file.mode(), S_IFREG | 0640u);
  EXPECT_THAT(file.opened_as(), IsEmpty());
}

/// As sem_open() of glibc creates it: mapped under one name, linked to another, and the first
/// removed.
TEST_F(OutgoingFiles, RemovedNameIsRestoredForTheDumpOnly) {
  UniqueFd file = open("first");
  const UniqueMapping mapping = map(file);
  file.reset();
  ASSERT_EQ(::rename(directory_.name("first").c_str(), directory_.name("moved").c_str()), 0);
  ASSERT_EQ(::link(directory_.name("moved").c_str(), directory_.name("last").c_str()), 0);
  ASSERT_EQ(::unlink(directory_.name("moved").c_str()), 0);
  const Outgoing found = find_outgoing_files();
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
  EXPECT_TRUE(give_names(found)) << "a second call is harmless";
  EXPECT_THAT(find_outgoing_files().files.front().fact.names(),
              ElementsAre(directory_.name("last")));
  ASSERT_TRUE(remove_names(wanted, Which::kMade, {::getpid()}));
  EXPECT_EQ(id_of(for_dump), procfs::FileId());
  EXPECT_NE(id_of(directory_.name("last")), procfs::FileId());
}

TEST_F(OutgoingFiles, NameTakenByAnotherFileIsNotReplaced) {
  const UniqueFd file = open("first");
  ASSERT_EQ(::link(directory_.name("first").c_str(), directory_.name("last").c_str()), 0);
  ASSERT_EQ(::unlink(directory_.name("first").c_str()), 0);
  const Outgoing found = find_outgoing_files();
  ASSERT_THAT(found.files, SizeIs(1));
  const std::string theirs = directory_.write("first (deleted)", "theirs");
  EXPECT_FALSE(give_names(found));
  EXPECT_EQ(read(theirs), "theirs");
}

TEST_F(OutgoingFiles, SharedMemoryNamedElsewhereIsRefused) {
  const UniqueFd file = open("file");
  const UniqueMapping mapping = map(file);
  const Directory other;
  ASSERT_EQ(::link(directory_.name("file").c_str(), other.name("file").c_str()), 0);
  const Outgoing found = find_outgoing_files();
  EXPECT_THAT(found.files, IsEmpty());
  EXPECT_THAT(reasons(found), HasSubstr("has 2 names, of which 1 are known"));
}

TEST_F(OutgoingFiles, TooLargeFileIsRefused) {
  const UniqueFd file = open("file");
  const UniqueMapping mapping = map(file);
  ASSERT_EQ(::ftruncate(file.get(), kMaxFileBytes + 4096), 0);
  EXPECT_THAT(reasons(find_outgoing_files()), HasSubstr("are allowed"));
}

TEST_F(OutgoingFiles, FileSharedWithAnOutsiderIsRefused) {
  const UniqueFd file = open("file");
  const UniqueMapping mapping = map(file);
  const std::string path = directory_.name("file");
  std::optional<Held> outsider(std::in_place, std::vector<std::string>{"open", path});
  const Outgoing found = find_outgoing_files();
  EXPECT_THAT(found.files, IsEmpty());
  EXPECT_THAT(reasons(found), HasSubstr("process " + std::to_string(::getpid())));
  EXPECT_THAT(reasons(found),
              HasSubstr("process " + std::to_string(outsider->pid()) + " (held_program) has too"));
  EXPECT_THAT(found.shared_with, testing::Contains(testing::Key(path)));
  outsider.reset();
  EXPECT_THAT(find_outgoing_files().files, SizeIs(1)) << "it is gone";
}

TEST_F(OutgoingFiles, FileClosedByAMemberIsReadThroughAnother) {
  UniqueFd file = open("file");
  const std::string path = directory_.name("file");
  UniqueMapping mapping = map(file);
  file.reset();
  const Held other({"share", path});
  const Outgoing found = find_outgoing_files({other.pid(), ::getpid()}, [&] { mapping.reset(); });
  EXPECT_THAT(reasons(found), IsEmpty());
  EXPECT_THAT(found.files, SizeIs(1));
}

/// A process that may write to another user's file is treated as hostile to that user.
using HostileOutgoing = OutgoingFiles;

TEST_F(HostileOutgoing, FileOfAnotherUserDoesNotMoveWithItsWriter) {
  const std::string roots = write("roots", 0, 0622);
  const std::string users = write("users", kUser, 0666);
  for (const auto& [path, user] : {std::pair(roots, kUser), std::pair(users, uid_t{0})}) {
    const Held member({"write", path}, user);
    const Outgoing found = find_outgoing_files({member.pid()});
    EXPECT_THAT(found.files, IsEmpty()) << path;
    EXPECT_THAT(reasons(found), IsEmpty()) << "it is compared like any other";
  }
}

TEST_F(HostileOutgoing, SharedMemoryOwnedByAnotherUserIsRefused) {
  const std::string path = write("file", 0, 0666);
  const Held member({"share", path}, kUser);
  const Outgoing found = find_outgoing_files({member.pid()});
  EXPECT_THAT(found.files, IsEmpty());
  EXPECT_THAT(reasons(found), HasSubstr(path + " in memory, which belongs to user 0, not to the "
                                               "process"));
}

TEST_F(HostileOutgoing, OwningMemberProvidesTheFile) {
  const std::string path = write("file", kUser, 0666);
  const Held other({"share", path});
  const Held owner({"open", path}, kUser);
  const Outgoing found = find_outgoing_files({other.pid(), owner.pid()});
  ASSERT_THAT(found.files, SizeIs(1)) << reasons(found);
  EXPECT_EQ(found.files.front().pid, owner.pid());
  EXPECT_EQ(found.files.front().owner.uids(3), kUser);
  const auto content = memory_files::open(found.files.front());
  ASSERT_TRUE(content) << content.error().message();
  char text[7];
  ASSERT_EQ(::read(content->get(), text, sizeof(text)), 7);
}

TEST_F(HostileOutgoing, FileUnreadableByItsOwnerIsNotRead) {
  const std::string path = write("file", kUser, 0600);
  const Held member({"share", path}, kUser);
  const Outgoing found = find_outgoing_files({member.pid()});
  ASSERT_THAT(found.files, SizeIs(1)) << reasons(found);
  EXPECT_TRUE(memory_files::open(found.files.front()));
  ASSERT_EQ(::chown(path.c_str(), 0, 0), 0);  // after its examination
  EXPECT_FALSE(memory_files::open(found.files.front()));
  ASSERT_EQ(::chown(path.c_str(), kUser, kUser), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0200), 0);
  EXPECT_THAT(reasons(find_outgoing_files({member.pid()})),
              HasSubstr("which its owner may not read"));
}

TEST_F(HostileOutgoing, DumpNamesNeedTheOwnersPermission) {
  const std::string first = write("first", kUser, 0600);
  const Held member({"share", first, "link", first, directory_.name("last"), "delete", first},
                    kUser);
  const Outgoing found = find_outgoing_files({member.pid()});
  ASSERT_THAT(found.files, SizeIs(1)) << reasons(found);
  ASSERT_EQ(::chmod(directory_.path().c_str(), 0755), 0);
  EXPECT_FALSE(give_names(found));
  ASSERT_EQ(::chmod(directory_.path().c_str(), 0777), 0);
  EXPECT_TRUE(give_names(found));
}

}  // namespace
}  // namespace gcr::memory_files::test
