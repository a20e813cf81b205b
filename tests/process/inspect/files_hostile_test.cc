// A migration does not give a file of the same name and size to another process: the files at the
// destination must equal those of the process, and be files that it could open itself.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/files.h"
#include "migrate-agent/process/inspect/named_files.h"
#include "src/base/unique_fd.h"

namespace gcr::process {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uid_t kUser = 65'534;

class HostileFiles : public testing::Test {
 protected:
  HostileFiles() {
    std::string path = "/dev/shm/gcr-files-test-XXXXXX";
    if (::mkdtemp(path.data()) != nullptr) directory_ = path;
    fs::permissions(directory_, fs::perms(0755));
    for (int id = 0; id < 4; ++id) {
      user_.add_uids(kUser);
      user_.add_gids(kUser);
    }
  }
  ~HostileFiles() override { fs::remove_all(directory_); }

  fs::path write(const std::string& content, const std::string& name = "file") {
    std::ofstream(directory_ / name, std::ios::binary) << content;
    fs::permissions(directory_ / name, fs::perms(0644));
    return directory_ / name;
  }

  /// The source's description of a file that exists now.
  static proto::FileFact describe(const fs::path& path, std::uint32_t access = R_OK) {
    const UniqueFd file = procfs::hold(path);
    struct stat status {};
    EXPECT_EQ(::fstat(file.get(), &status), 0);
    proto::FileFact fact;
    describe_file(path, file, status, {(access & W_OK) == 0, false}, fact);
    fact.set_access(access);
    return fact;
  }

  /// "id: what was found" for each finding.
  std::vector<std::string> compared(const proto::FileFact& fact) {
    FileFacts facts;
    *facts.Add() = fact;
    findings::Findings findings(findings::Side::kDestination);
    compare_files(facts, user_, findings);
    std::vector<std::string> said;
    for (const proto::Finding& finding : findings.list()) {
      said.push_back(finding.id() + ": " + finding.found());
    }
    return said;
  }

  void expect_only(const proto::FileFact& fact, const std::string& id, const std::string& text) {
    const auto said = compared(fact);
    ASSERT_EQ(said.size(), 1u) << testing::PrintToString(said);
    EXPECT_THAT(said[0], testing::AllOf(testing::StartsWith(id + ": "), HasSubstr(text)));
  }

  fs::path directory_;
  proto::Credentials user_;
};

/// A child with an open file whose name the kernel cannot report: its path is too long.
class Hiding {
 public:
  explicit Hiding(const fs::path& directory) {
    std::array<int, 2> ready{};
    if (::pipe2(ready.data(), O_CLOEXEC) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) hide(directory, ready[1]);
    ::close(ready[1]);
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
  }
  ~Hiding() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Hiding(const Hiding&) = delete;
  Hiding& operator=(const Hiding&) = delete;

  pid_t pid() const { return pid_; }

 private:
  [[noreturn]] static void hide(const fs::path& directory, int ready) {
    constexpr int kDepth = 20;
    const std::string name(250, 'd');
    bool done = ::chdir(directory.c_str()) == 0;
    for (int i = 0; i < kDepth; ++i) {
      done = done && ::mkdir(name.c_str(), 0755) == 0 && ::chdir(name.c_str()) == 0;
    }
    done = done && ::open("hidden", O_RDWR | O_CREAT, 0600) >= 0 && ::chdir("/") == 0;
    if (done && ::write(ready, "x", 1) == 1) ::pause();
    ::_exit(1);
  }

  pid_t pid_ = -1;
};

TEST_F(HostileFiles, TooLongNameIsNotSkipped) {
  const Hiding process(directory_);
  const auto files = named_files(process.pid());
  ASSERT_FALSE(files) << "the file is missing without an error";
  EXPECT_NE(files.error().code(), Code::kNotFound);
  EXPECT_THAT(files.error().message(), HasSubstr("cannot tell what file /proc/"));
}

TEST_F(HostileFiles, SameFileIsAccepted) {
  EXPECT_THAT(compared(describe(write("content"))), IsEmpty());
}

TEST_F(HostileFiles, OtherOwnerIsRefused) {
  const proto::FileFact told = describe(write("content"));
  ASSERT_EQ(::chown(told.path().c_str(), kUser, 0), 0);
  expect_only(told, "file-differs", "belongs to user 65534 and group 0 here, to 0 and 0");
}

TEST_F(HostileFiles, OtherGroupIsRefused) {
  const proto::FileFact told = describe(write("content"));
  ASSERT_EQ(::chown(told.path().c_str(), 0, kUser), 0);
  expect_only(told, "file-differs", "belongs to user 0 and group 65534 here");
}

TEST_F(HostileFiles, OtherModeIsRefused) {
  const proto::FileFact told = describe(write("content"));
  ASSERT_EQ(::chmod(told.path().c_str(), 04755), 0);
  expect_only(told, "file-differs", "has mode 4755 here and 644 at the source");
}

TEST_F(HostileFiles, OtherModeOfAWriteOnlyFileIsRefused) {
  const proto::FileFact told = describe(write("content"), W_OK);
  ASSERT_EQ(::chmod(told.path().c_str(), 0600), 0);
  expect_only(told, "file-differs", "has mode 600 here");
}

TEST_F(HostileFiles, OtherContentOfTheSameSizeIsRefused) {
  const proto::FileFact told = describe(write("content"));
  write("CONTENT");
  expect_only(told, "file-differs", "other content");
}

TEST_F(HostileFiles, OtherSizeIsRefused) {
  const proto::FileFact told = describe(write(""));
  write("content");
  expect_only(told, "file-differs", "has 7 bytes here and 0 at the source");
}

TEST_F(HostileFiles, OtherBuildIdIsRefused) {
  proto::FileFact told = describe(write("content"));
  told.set_build_id("1234abce");
  expect_only(told, "file-differs", "build-id none here and 1234abce");
}

TEST_F(HostileFiles, OtherTypeIsRefused) {
  const fs::path path = write("");
  const proto::FileFact told = describe(path);
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0644), 0);  // opening it would block
  expect_only(told, "file-differs", "is a FIFO here and a regular file at the source");
}

TEST_F(HostileFiles, NonRegularFilesAreNotOpened) {
  const proto::FileFact told = describe(write("content"));
  for (const mode_t type : {S_IFIFO, S_IFCHR}) {
    fs::remove(told.path());
    const dev_t device = type == S_IFCHR ? makedev(1, 3) : 0;
    ASSERT_EQ(::mknod(told.path().c_str(), type | 0644, device), 0);
    const UniqueFd opened(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    ASSERT_GE(::inotify_add_watch(opened.get(), told.path().c_str(), IN_OPEN), 0);
    expect_only(told, "file-differs", "and a regular file at the source");
    char event[4096];
    EXPECT_LT(::read(opened.get(), event, sizeof(event)), 0) << "it was opened";
  }
}

TEST_F(HostileFiles, OtherDeviceIsRefused) {
  proto::FileFact told = describe("/dev/null", R_OK | W_OK);
  EXPECT_THAT(compared(told), IsEmpty());
  told.set_device(makedev(1, 5));
  expect_only(told, "file-differs", "is device 103 here and 105 at the source");
}

TEST_F(HostileFiles, MissingFileIsRefused) {
  const proto::FileFact told = describe(write("content"));
  fs::remove(told.path());
  expect_only(told, "file-missing", told.path());
}

TEST_F(HostileFiles, FileUnreadableByTheUserIsRefused) {
  const fs::path path = write("secret");
  fs::permissions(path, fs::perms(0600));
  expect_only(describe(path), "file-access", "user 65534 could not open");
  user_.set_effective(std::uint64_t{1} << 2);  // CAP_DAC_READ_SEARCH
  EXPECT_THAT(compared(describe(path)), IsEmpty());
}

TEST_F(HostileFiles, FileReadOnlyForTheUserIsRefused) {
  const fs::path path = write("content");
  expect_only(describe(path, R_OK | W_OK), "file-access", "Permission denied");
  ASSERT_EQ(::chown(path.c_str(), 0, 4242), 0);
  fs::permissions(path, fs::perms(0664));
  expect_only(describe(path, W_OK), "file-access", "Permission denied");
  user_.add_groups(4242);
  EXPECT_THAT(compared(describe(path, W_OK)), IsEmpty());
}

TEST_F(HostileFiles, FileInAClosedDirectoryIsRefused) {
  const fs::path path = write("content");
  fs::permissions(directory_, fs::perms(0700));
  expect_only(describe(path), "file-access", "Permission denied");
}

TEST_F(HostileFiles, RightsOfAgentThreadsStayUnchanged) {
  EXPECT_THAT(compared(describe(write("content"))), IsEmpty());
  EXPECT_EQ(::access("/root", W_OK), 0);
  EXPECT_EQ(::geteuid(), 0u);
}

class HostileNames : public HostileFiles {
 protected:
  Status vet(const std::set<std::string>& names) {
    DumpedMembers told;
    proto::DumpedMember& member = *told.Add();
    member.set_pid_in_namespace(17);
    *member.add_credentials() = user_;
    *member.add_named() = describe(directory_, 0);
    *member.add_named() = describe(write("content"));
    auto vetted = vet_files(names, told);
    if (!vetted) return vetted.error();
    return {};
  }
};

TEST_F(HostileNames, FilesNotDeclaredByTheSourceAreRefused) {
  const std::string told = directory_ / "file";
  EXPECT_TRUE(vet({told}));
  EXPECT_THAT(vet({told, "/etc/shadow"}).error().message(),
              HasSubstr("CRIU's images name /etc/shadow"));
  EXPECT_TRUE(vet({told, "/proc/17/maps"}));
  EXPECT_FALSE(vet({told, "/proc/1/environ"}));
}

TEST_F(HostileNames, RestoredFilesAreTheVettedOnes) {
  const auto files = named_files(::getpid());
  ASSERT_TRUE(files);
  VettedFiles vetted;
  for (const NamedFile& file : *files) vetted[file.id] |= file.fact.access();
  EXPECT_TRUE(check_restored_files(::getpid(), vetted));
  const UniqueFd other(::open(write("content").c_str(), O_RDONLY | O_CLOEXEC));
  const Status checked = check_restored_files(::getpid(), vetted);
  ASSERT_FALSE(checked);
  EXPECT_THAT(checked.error().message(), HasSubstr((directory_ / "file").string()));
  struct stat status {};
  ASSERT_EQ(::fstat(other.get(), &status), 0);
  vetted[{status.st_dev, status.st_ino}] = W_OK;  // and it is open for reading
  EXPECT_FALSE(check_restored_files(::getpid(), vetted));
}

TEST_F(HostileNames, RestoredProcFilesBelongToTheProcess) {
  const auto files = named_files(::getpid());
  ASSERT_TRUE(files);
  VettedFiles vetted;
  for (const NamedFile& file : *files) vetted[file.id] |= file.fact.access();
  const UniqueFd own(::open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
  const UniqueFd foreign(::open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(check_restored_files(::getpid(), vetted));
  const UniqueFd others(::open("/proc/1/status", O_RDONLY | O_CLOEXEC));
  const Status checked = check_restored_files(::getpid(), vetted);
  ASSERT_FALSE(checked);
  EXPECT_THAT(checked.error().message(), HasSubstr("/proc/1/status"));
}

}  // namespace
}  // namespace gcr::process
