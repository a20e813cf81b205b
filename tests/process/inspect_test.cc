// What inspect() says of real processes: every blocker is provoked, and what is harmless is not
// one.
#include "migrate-agent/process/inspect.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "migrate-agent/process/procfs.h"
#include "src/base/unique_fd.h"

namespace gcr::process {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kReadyFd = 3;

class Inspecting : public testing::Test {
 protected:
  Inspecting() {
    std::string path = "/dev/shm/gcr-process-test-XXXXXX";
    if (::mkdtemp(path.data()) != nullptr) directory_ = path;
  }
  ~Inspecting() override {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    fs::remove_all(directory_);
  }

  fs::path make_file(const std::string& name, std::size_t bytes = 4096) {
    std::ofstream(directory_ / name) << "x";
    fs::resize_file(directory_ / name, bytes);
    return directory_ / name;
  }

  /// Starts the program with `arguments` and waits until it has done what they say. `before_exec`
  /// runs in the child, after its standard streams were set to /dev/null.
  void start(
      const std::vector<std::string>& arguments, const std::function<void()>& before_exec = [] {}) {
    int ready[2];
    ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    const UniqueFd reading(ready[0]);
    UniqueFd writing(::fcntl(ready[1], F_DUPFD_CLOEXEC, 100));
    ::close(ready[1]);
    std::vector<const char*> argv{GCR_HELD_PROGRAM};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setsid();
      const int nothing = ::open("/dev/null", O_RDWR);
      for (int fd = 0; fd < 3; ++fd) ::dup2(nothing, fd);
      before_exec();
      ::dup2(writing.get(), kReadyFd);
      ::close_range(kReadyFd + 1, ~0u, 0);
      ::execv(argv[0], const_cast<char* const*>(argv.data()));
      ::_exit(127);
    }
    writing.reset();
    char byte = 0;
    ASSERT_EQ(::read(reading.get(), &byte, 1), 0);  // the end: it is ready, or dead
    ASSERT_EQ(::waitpid(pid_, nullptr, WNOHANG), 0) << "the program has ended";
  }

  Inspection look() {
    auto inspection = inspect(pid_);
    EXPECT_TRUE(inspection) << inspection.error().message();
    return inspection ? *inspection : Inspection{};
  }

  static std::vector<std::string> ids(const Inspection& inspection) {
    std::vector<std::string> ids;
    for (const proto::Blocker& blocker : inspection.blockers) ids.push_back(blocker.id());
    return ids;
  }

  static std::vector<std::string> paths(
      const google::protobuf::RepeatedPtrField<proto::FileFact>& files) {
    std::vector<std::string> paths;
    for (const proto::FileFact& file : files) paths.push_back(file.path());
    return paths;
  }

  fs::path directory_;
  pid_t pid_ = -1;
};

TEST_F(Inspecting, PlainProcessHasFactsAndNoBlockers) {
  start({"pipe", "pair", "listen"});
  const Inspection found = look();
  EXPECT_THAT(ids(found), IsEmpty());
  EXPECT_THAT(found.facts.command(), HasSubstr("held_program pipe pair listen"));
  EXPECT_EQ(found.facts.threads(), 1u);
  EXPECT_GT(found.facts.resident_bytes(), 0u);
  EXPECT_EQ(found.facts.pid_in_namespace(), pid_);
  EXPECT_FALSE(found.facts.under_preload());
  EXPECT_THAT(paths(found.facts.mapped_files()), Contains(GCR_HELD_PROGRAM));
  EXPECT_THAT(paths(found.facts.mapped_files()), Contains(HasSubstr("libc.so")));
  EXPECT_THAT(compare_files(found.facts), IsEmpty());
}

TEST_F(Inspecting, PreloadLibraryIsSeenByItsName) {
  start({"map", make_file("libgcr-preload.so").string()});
  EXPECT_TRUE(look().facts.under_preload());
}

TEST_F(Inspecting, OpenFilesAreListedAndWritableOnesWithoutSize) {
  const fs::path reading = make_file("reading", 100);
  const fs::path writing = make_file("writing", 200);
  start({"open", reading.string(), "write", writing.string()}, [this] {
    if (::chdir(directory_.c_str()) != 0) ::_exit(1);
  });
  const Inspection found = look();
  EXPECT_THAT(ids(found), IsEmpty());
  ASSERT_THAT(paths(found.facts.open_files()),
              ElementsAre(reading.string(), writing.string(), directory_.string()));
  EXPECT_EQ(found.facts.open_files(0).size_bytes(), 100u);
  EXPECT_EQ(found.facts.open_files(1).size_bytes(), 0u);
}

TEST_F(Inspecting, AbsentProcessIsNotFound) {
  start({});
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  EXPECT_EQ(inspect(pid_).error().code(), Code::kNotFound);
  EXPECT_EQ(start_time(pid_).error().code(), Code::kNotFound);
  EXPECT_EQ(pid_in_namespace(pid_).error().code(), Code::kNotFound);
  EXPECT_EQ(inspect(-1).error().code(), Code::kNotFound);
  EXPECT_EQ(inspect(0).error().code(), Code::kNotFound);
  pid_ = -1;
}

TEST_F(Inspecting, DeadProcessThatNobodyReapedIsNotFound) {
  start({});
  ::kill(pid_, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(inspect(pid_).error().code(), Code::kNotFound);
}

TEST_F(Inspecting, StartTimeTellsAProcessFromALaterOne) {
  start({});
  const auto theirs = start_time(pid_);
  ASSERT_TRUE(theirs);
  EXPECT_EQ(*theirs, *start_time(pid_));
  EXPECT_GE(*theirs, *start_time(::getpid()));
}

TEST_F(Inspecting, KernelThreadsInitAndOurselvesAreNotOurs) {
  for (const pid_t pid : {2, 1, ::getpid(), ::getppid()}) {
    const auto found = inspect(pid);
    ASSERT_TRUE(found) << pid << ": " << found.error().message();
    EXPECT_THAT(ids(*found), Contains("not-ours")) << pid;
  }
}

TEST_F(Inspecting, ChildrenBlock) {
  start({"child"});
  const auto below = procfs::tree(pid_);
  EXPECT_THAT(ids(look()), ElementsAre("children"));
  for (const pid_t child : below) {
    if (child != pid_) ::kill(child, SIGKILL);
  }
}

TEST_F(Inspecting, OtherNamespacesBlockAndAreNamed) {
  start({}, [] {
    if (::unshare(CLONE_NEWNET | CLONE_NEWUTS) != 0) ::_exit(1);
  });
  const Inspection found = look();
  ASSERT_THAT(ids(found), ElementsAre("namespaces"));
  EXPECT_THAT(found.blockers[0].text(), HasSubstr("net, uts"));
}

TEST_F(Inspecting, MountNamespaceDoesNotBlock) {
  start({}, [] {
    if (::unshare(CLONE_NEWNS) != 0) ::_exit(1);
  });
  EXPECT_THAT(ids(look()), IsEmpty());
}

TEST_F(Inspecting, TerminalBlocks) {
  const UniqueFd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(::grantpt(master.get()) == 0 && ::unlockpt(master.get()) == 0);
  const std::string name = ::ptsname(master.get());
  start({}, [&name] { ::dup2(::open(name.c_str(), O_RDWR), STDIN_FILENO); });
  const Inspection found = look();
  ASSERT_THAT(ids(found), ElementsAre("terminal"));
  EXPECT_THAT(found.blockers[0].text(), HasSubstr("standard input is the terminal " + name));
}

TEST_F(Inspecting, PipeToAnOutsiderBlocksAndNamesHim) {
  int pipes[2];
  ASSERT_EQ(::pipe2(pipes, O_CLOEXEC), 0);
  const UniqueFd reading(pipes[0]);
  const UniqueFd writing(pipes[1]);
  start({}, [&] { ::dup2(writing.get(), STDOUT_FILENO); });
  const Inspection found = look();
  ASSERT_THAT(ids(found), ElementsAre("outside-pipe"));
  EXPECT_THAT(found.blockers[0].text(),
              HasSubstr("standard output is a pipe to process " + std::to_string(::getpid())));
}

TEST_F(Inspecting, SocketToAnOutsiderBlocks) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd ours(pair[0]);
  UniqueFd theirs(pair[1]);
  start({}, [&] { ::dup2(theirs.get(), STDERR_FILENO); });
  theirs.reset();
  const Inspection found = look();
  ASSERT_THAT(ids(found), ElementsAre("outside-socket"));
  EXPECT_THAT(found.blockers[0].text(), HasSubstr(std::to_string(::getpid())));
}

TEST_F(Inspecting, SocketWhoseBothEndsAreInsideIsFineThoughTheAgentHoldsACopy) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  UniqueFd one(pair[0]);
  const UniqueFd agents(pair[1]);
  start({}, [&] {
    ::dup2(one.get(), STDOUT_FILENO);
    ::dup2(agents.get(), STDERR_FILENO);
  });
  one.reset();
  EXPECT_THAT(ids(look()), IsEmpty());
}

TEST_F(Inspecting, TcpConnectionBlocks) {
  start({"connect"});
  EXPECT_THAT(ids(look()), ElementsAre("tcp-established"));
}

TEST_F(Inspecting, IoUringBlocks) {
  start({"io_uring"});
  EXPECT_THAT(ids(look()), Contains("io-uring"));
}

TEST_F(Inspecting, UnknownDeviceBlocksAndMemoryDevicesDoNot) {
  start({"open", "/dev/kmsg", "open", "/dev/zero", "open", "/dev/urandom"});
  const Inspection found = look();
  ASSERT_THAT(ids(found), ElementsAre("device"));
  EXPECT_THAT(found.blockers[0].text(), HasSubstr("/dev/kmsg"));
}

TEST_F(Inspecting, SystemVSharedMemoryBlocks) {
  start({"sysv"});
  EXPECT_THAT(ids(look()), ElementsAre("shared-memory"));
}

TEST_F(Inspecting, SmallDeletedFileMovesAndALargeOneBlocks) {
  const fs::path small = make_file("small");
  const fs::path large = make_file("large", kDeletedFileLimitBytes + 1);
  start({"write", small.string(), "delete", small.string()});
  EXPECT_THAT(ids(look()), IsEmpty());
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  start({"write", large.string(), "delete", large.string()});
  EXPECT_THAT(ids(look()), ElementsAre("deleted-file"));
}

TEST_F(Inspecting, FileDeletedUnderOneNameAndKeptUnderAnotherBlocks) {
  const fs::path file = make_file("file");
  start({"open", file.string(), "link", file.string(), (directory_ / "other").string(), "delete",
         file.string()});
  EXPECT_THAT(ids(look()), ElementsAre("deleted-file"));
}

TEST_F(Inspecting, TracerBlocks) {
  start({});
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, pid_, nullptr, nullptr), 0);
  EXPECT_THAT(ids(look()), ElementsAre("traced"));
}

TEST_F(Inspecting, StoppedProcessIsWarnedAbout) {
  start({});
  ::kill(pid_, SIGSTOP);
  ASSERT_TRUE(procfs::wait_until_stopped(pid_));
  const Inspection found = look();
  EXPECT_THAT(ids(found), IsEmpty());
  EXPECT_THAT(found.warnings, Contains(HasSubstr("stopped")));
}

TEST_F(Inspecting, EverythingIsReportedAtOnce) {
  int pipes[2];
  ASSERT_EQ(::pipe2(pipes, O_CLOEXEC), 0);
  const UniqueFd reading(pipes[0]);
  const UniqueFd writing(pipes[1]);
  start({"connect", "io_uring", "sysv"}, [&] { ::dup2(writing.get(), STDOUT_FILENO); });
  EXPECT_THAT(ids(look()), testing::IsSupersetOf(
                               {"outside-pipe", "tcp-established", "io-uring", "shared-memory"}));
}

}  // namespace
}  // namespace gcr::process
