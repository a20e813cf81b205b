// Dump and restore with a real CRIU: which processes run afterwards, and what is left behind.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <set>
#include <sstream>

#include "migrate-agent/criu/launch/launch.h"
#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "tests/criu/program.h"
#include "tests/criu/whole_runs.h"
#include "tests/support/wait_until.h"

namespace gcr::criu::test {
namespace {

namespace fs = std::filesystem;

class DumpRestore : public testing::Test {
 protected:
  fs::path file() const { return directory_.path() / "output"; }
  fs::path images(const std::string& name = "images") const { return directory_.make(name); }

  /// A running program that has counted a little.
  Output start(const std::string& mode = "count") {
    program_ = std::make_unique<Program>(file(), mode);
    return wait_for_progress(file(), {}, 5);
  }

  /// Dumps the program into images() and kills it.
  void dump_and_kill() {
    const auto report = dump(criu_command(), program_->pid(), images());
    ASSERT_TRUE(report) << report.error().message();
    EXPECT_FALSE(images::names(images()).empty());
    const Status killed = kill_stopped(program_->process());
    ASSERT_TRUE(killed) << killed.error().message();
    EXPECT_EQ(WTERMSIG(program_->reap()), SIGKILL);
  }

  Directory directory_;
  std::unique_ptr<Program> program_;
};

TEST(Criu, AcceptsThisKernel) {
  const Status status = check(criu_command());
  EXPECT_TRUE(status) << status.error().message();
}

TEST(Criu, OneRunReportsAllFacts) {
  const auto all = facts(criu_command());
  ASSERT_TRUE(all) << all.error().message();
  EXPECT_GE(all->version, 40101u);
  EXPECT_TRUE(all->check) << all->check.error().message();
  EXPECT_TRUE(check_cpu_features(criu_command(), all->cpu_features));
}

TEST(Criu, AnswersOrFailsWithFewDescriptorsLeft) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int first_free = ::dup(STDIN_FILENO);
  ::close(first_free);
  int failed = 0;
  int answered = 0;
  for (rlim_t more = 0; more < 24; ++more) {
    const rlimit few{static_cast<rlim_t>(first_free) + more, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    const auto all = facts(criu_command());
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    ++(all ? answered : failed);
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left with " << more;
  }
  EXPECT_GT(failed, 0);
  EXPECT_GT(answered, 0);
}

TEST(Criu, ChildrenOfACheckEndWithIt) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const Directory logs;
  const std::string ours = procfs::namespace_link(::getpid(), "pid");
  int seen = 0;
  for (int delay_ms = 0; delay_ms < 60; delay_ms += 2) {
    const pid_t checking = ::fork();
    if (checking == 0) {
      ::setenv("TMPDIR", logs.path().c_str(), 1);
      for (;;) (void)check(criu_command());
    }
    ::poll(nullptr, 0, delay_ms);
    for (const pid_t process : procfs::tree(checking)) {
      const std::string theirs = procfs::namespace_link(process, "pid");
      if (process == checking || theirs.empty()) continue;
      EXPECT_NE(theirs, ours);
      ++seen;
    }
    ::kill(checking, SIGKILL);
    // Its orphans become children of this process, and must end by themselves.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (::waitpid(-1, nullptr, WNOHANG | __WALL) >= 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "after " << delay_ms << " ms";
      ::poll(nullptr, 0, 1);
    }
  }
  EXPECT_GT(seen, 0);
}

TEST(Criu, MissingProgramIsNamedInTheError) {
  const auto number = facts(Command{{"/no/such/criu"}, criu_command().reaper});
  ASSERT_FALSE(number);
  EXPECT_EQ(number.error().code(), Code::kNotFound);
  EXPECT_NE(number.error().message().find("executing CRIU"), std::string::npos)
      << number.error().message();
}

TEST_F(DumpRestore, DumpedProcessIsStoppedAndResumes) {
  start();
  const auto report = dump(criu_command(), program_->pid(), images());
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(state_of(program_->pid()), 'T');
  const Output dumped = read_output(file());
  ASSERT_TRUE(resume_stopped(program_->process()));
  expect_gapless(wait_for_progress(file(), dumped, 20));
}

TEST_F(DumpRestore, KillRemovesTheDumpedProcess) {
  start();
  ASSERT_TRUE(dump(criu_command(), program_->pid(), images()));
  const pid_t pid = program_->pid();
  ASSERT_TRUE(kill_stopped(program_->process()));
  EXPECT_EQ(state_of(pid), 'Z');  // this process reaps it
  program_->reap();
  EXPECT_FALSE(exists(pid));
}

TEST_F(DumpRestore, RestoredProcessIsStoppedAndResumesWithoutGap) {
  const pid_t pid = (start(), program_->pid());
  dump_and_kill();
  const Output dumped = read_output(file());
  auto tree = restore(criu_command(), images());
  ASSERT_TRUE(tree) << tree.error().message();
  EXPECT_EQ(state_of(tree->pid()), 'T');
  EXPECT_EQ(procfs::namespace_pids(std::to_string(tree->pid())).back(), pid);
  EXPECT_EQ(read_output(file()).lines, dumped.lines);
  ASSERT_TRUE(resume_stopped(tree->root()));
  expect_gapless(wait_for_progress(file(), dumped, 20));
}

/// AMD's plugin, from the CRIU release. There is no GPU, and the program uses none.
TEST_F(DumpRestore, AmdPluginFitsCriuAndIgnoresOtherPrograms) {
  const auto criu = facts(criu_command());
  ASSERT_TRUE(criu) << criu.error().message();
  auto plugin = open_plugin(criu_command(), kAmdGpuPlugin, criu->version);
  ASSERT_TRUE(plugin) << plugin.error().message();
  start();
  const auto taken = dump(criu_command(), program_->pid(), images(), {.plugin = *plugin});
  ASSERT_TRUE(taken) << taken.error().message();
  std::stringstream log;
  log << std::ifstream(images() / "dump.log").rdbuf();
  EXPECT_THAT(log.str(), testing::HasSubstr("amdgpu_plugin: initialized"));
  ASSERT_TRUE(kill_stopped(program_->process()));
  program_->reap();
  const Output before = read_output(file());
  auto tree = restore(criu_command(), images(), {.plugin = *plugin});
  ASSERT_TRUE(tree) << tree.error().message();
  ASSERT_TRUE(resume_stopped(tree->root()));
  expect_gapless(wait_for_progress(file(), before, 20));
}

TEST_F(DumpRestore, DestroyRemovesTheRestoredTree) {
  const std::set<pid_t> before = all_processes();
  start();
  dump_and_kill();
  pid_t init = 0;
  {
    auto tree = restore(criu_command(), images());
    ASSERT_TRUE(tree) << tree.error().message();
    ASSERT_TRUE(resume_stopped(tree->root()));
    init = tree->init().pid();
    EXPECT_TRUE(exists(init));
  }
  EXPECT_FALSE(exists(init));
  EXPECT_EQ(all_processes(), before);
}

TEST_F(DumpRestore, TenRoundTripsLoseAndRepeatNothing) {
  start();
  dump_and_kill();
  std::string from = "images";
  for (int trip = 1; trip <= 10; ++trip) {
    const Output before = read_output(file());
    auto tree = restore(criu_command(), images(from));
    ASSERT_TRUE(tree) << "trip " << trip << ": " << tree.error().message();
    ASSERT_TRUE(resume_stopped(tree->root()));
    wait_for_progress(file(), before, 3);
    fs::remove_all(images(from));
    from = "trip" + std::to_string(trip);
    const auto report = dump(criu_command(), tree->pid(), images(from));
    ASSERT_TRUE(report) << "trip " << trip << ": " << report.error().message();
    EXPECT_EQ(state_of(tree->pid()), 'T');
    ASSERT_TRUE(kill_stopped(tree->root()));
  }
  expect_gapless(read_output(file()));
}

TEST_F(DumpRestore, ReaperEndsWithTheLastTask) {
  start();
  dump_and_kill();
  auto tree = restore(criu_command(), images());
  ASSERT_TRUE(tree) << tree.error().message();
  ASSERT_TRUE(resume_stopped(tree->root()));
  const pid_t init = tree->init().pid();
  tree->release();
  ::kill(tree->pid(), SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(init, &status, 0), init);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(DumpRestore, ReleasedTreeOutlivesItsHandleAndGetsSigterm) {
  start();
  dump_and_kill();
  pid_t init = 0;
  const Output before = read_output(file());
  {
    auto tree = restore(criu_command(), images());
    ASSERT_TRUE(tree) << tree.error().message();
    ASSERT_TRUE(resume_stopped(tree->root()));
    init = tree->init().pid();
    tree->release();
  }
  wait_for_progress(file(), before, 5);
  ::kill(init, SIGTERM);
  int status = 0;
  ASSERT_EQ(::waitpid(init, &status, 0), init);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

/// The descriptors of a process, with sockets but without their numbers.
std::set<std::string> descriptor_targets(pid_t pid) {
  std::set<std::string> targets;
  std::error_code closed_meanwhile;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    const std::string target = fs::read_symlink(entry, closed_meanwhile).string();
    targets.insert(target.substr(0, target.find(':')));
  }
  return targets;
}

TEST_F(DumpRestore, ReleasedReaperHoldsNoFilesOfTheAgent) {
  start();
  dump_and_kill();
  auto tree = restore(criu_command(), images());
  ASSERT_TRUE(tree) << tree.error().message();
  const pid_t init = tree->init().pid();
  EXPECT_TRUE(descriptor_targets(init).contains("socket"));
  EXPECT_EQ(::getsid(init), init);
  tree->release();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (descriptor_targets(init).contains("socket") && std::chrono::steady_clock::now() < end) {
    ::sched_yield();
  }
  EXPECT_EQ(descriptor_targets(init), (std::set<std::string>{"/dev/null", "anon_inode"}));
  ::kill(init, SIGKILL);
  ::waitpid(init, nullptr, __WALL);
}

/// gcr-reaper as the init of a namespace, with a program that waits in place of CRIU: with one end
/// of a socket, the images directory, and /dev/null as each of `given`.
pid_t start_reaper(int socket, const fs::path& images, const std::vector<int>& given) {
  const std::string reaper = criu_command().reaper;
  const long flags = CLONE_NEWPID | CLONE_NEWNS | SIGCHLD;
  const auto pid = static_cast<pid_t>(::syscall(SYS_clone, flags, 0, 0, 0, 0));
  if (pid != 0) return pid;
  const auto kept = [](int fd) { return ::fcntl(fd, F_DUPFD, launch::kStatusFd + 1); };
  const int control = kept(socket);
  const int directory = kept(::open(images.c_str(), O_RDONLY | O_DIRECTORY));
  const int nothing = kept(::open("/dev/null", O_RDWR));
  ::close_range(launch::kRpcFd, launch::kStatusFd, 0);
  ::dup2(control, launch::kRpcFd);
  ::dup2(directory, launch::kImagesFd);
  for (const int fd : given) ::dup2(nothing, fd);
  ::execl(reaper.c_str(), "gcr-reaper", "0", "/bin/sleep", "1000", nullptr);
  ::_exit(127);
}

TEST_F(DumpRestore, ReaperGetsSignalsWithAnyDescriptors) {
  using launch::kHoldFd, launch::kLibraryFd, launch::kPluginFd;
  for (const std::vector<int>& given : std::vector<std::vector<int>>{
           {}, {kLibraryFd}, {kHoldFd}, {kPluginFd}, {kLibraryFd, kHoldFd, kPluginFd}}) {
    int sockets[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    const UniqueFd agent(sockets[0]);
    UniqueFd theirs(sockets[1]);
    const pid_t init = start_reaper(theirs.get(), images(), given);
    theirs.reset();
    ASSERT_GT(init, 0);
    const std::set<std::string> wanted{"/dev/null", "anon_inode", "socket"};
    EXPECT_TRUE(gcr::test::wait_until([&] { return descriptor_targets(init) == wanted; }))
        << testing::PrintToString(descriptor_targets(init)) << given.size();
    ::kill(init, SIGTERM);  // to its program, which ends with it
    int status = -1;
    ASSERT_EQ(::waitpid(init, &status, __WALL), init);
    EXPECT_EQ(status, 0);
  }
}

TEST_F(DumpRestore, UnreleasedTreeEndsWithItsAgent) {
  start();
  dump_and_kill();
  int pids[2];
  ASSERT_EQ(::pipe2(pids, O_CLOEXEC), 0);
  const pid_t agent = ::fork();
  if (agent == 0) {
    auto tree = restore(criu_command(), images());
    const pid_t init = tree ? tree->init().pid() : -1;
    ::_exit(::write(pids[1], &init, sizeof(init)) == sizeof(init) ? 0 : 1);
  }
  pid_t init = -1;
  ASSERT_EQ(::read(pids[0], &init, sizeof(init)), static_cast<ssize_t>(sizeof(init)));
  ::close(pids[0]);
  ::close(pids[1]);
  ASSERT_GT(init, 0);
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, init, 0)));
  ::waitpid(agent, nullptr, 0);
  pollfd ended{pidfd.get(), POLLIN, 0};
  EXPECT_TRUE(!pidfd || ::poll(&ended, 1, 10'000) == 1);
}

TEST_F(DumpRestore, SmallDeletedFileMovesWithItsContent) {
  start("ghost");  // it aborts when its deleted file is not what it was
  dump_and_kill();
  const Output dumped = read_output(file());
  auto tree = restore(criu_command(), images());
  ASSERT_TRUE(tree) << tree.error().message();
  ASSERT_TRUE(resume_stopped(tree->root()));
  expect_gapless(wait_for_progress(file(), dumped, 20));
}

TEST_F(DumpRestore, LowPidInANamespaceMovesTwice) {
  const std::string script = std::string(GCR_COUNTING_PROGRAM) + " " + file().string() +
                             " count </dev/null >/dev/null 2>&1 & wait";
  program_ = std::make_unique<Program>(
      std::vector<std::string>{"/usr/bin/unshare", "--pid", "--fork", "--mount-proc",
                               "--kill-child", "setsid", "-w", "sh", "-c", script});
  wait_for_progress(file(), {}, 5);
  const pid_t pid = procfs::tree(program_->pid()).back();
  const pid_t inner = procfs::namespace_pids(std::to_string(pid)).back();
  ASSERT_LT(inner, 10);
  const auto report = dump(criu_command(), pid, images());
  ASSERT_TRUE(report) << report.error().message();
  ASSERT_TRUE(kill_stopped(procfs::Process::open(pid).value()));
  program_.reset();
  auto tree = restore(criu_command(), images());
  ASSERT_TRUE(tree) << tree.error().message();
  EXPECT_EQ(procfs::namespace_pids(std::to_string(tree->pid())).back(), inner);
  const auto again = dump(criu_command(), tree->pid(), images("again"));
  ASSERT_TRUE(again) << again.error().message();
  const Output dumped = read_output(file());
  tree->kill();
  tree = restore(criu_command(), images("again"));
  ASSERT_TRUE(tree) << tree.error().message();
  ASSERT_TRUE(resume_stopped(tree->root()));
  expect_gapless(wait_for_progress(file(), dumped, 20));
}

TEST_F(DumpRestore, SocketToAnOutsiderIsRefused) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd ours(pair[0]);
  UniqueFd theirs(pair[1]);
  program_ = std::make_unique<Program>(file(), "count", theirs.get());
  theirs.reset();
  const Output before = wait_for_progress(file(), {}, 5);
  const auto report = dump(criu_command(), program_->pid(), images());
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), Code::kUnsupported);
  EXPECT_NE(report.error().message().find("Error (criu/"), std::string::npos)
      << report.error().message();
  expect_gapless(wait_for_progress(file(), before, 20));
}

TEST_F(DumpRestore, DumpOfAMissingProcessIsAnError) {
  start();
  const pid_t pid = program_->pid();
  program_.reset();
  const auto report = dump(criu_command(), pid, images());
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), Code::kNotFound);
}

TEST_F(DumpRestore, RestoreWithoutImagesLeavesNothing) {
  const std::set<pid_t> before = all_processes();
  const auto tree = restore(criu_command(), images());
  ASSERT_FALSE(tree);
  EXPECT_EQ(tree.error().code(), Code::kNotFound);
  EXPECT_EQ(all_processes(), before);
}

TEST_F(DumpRestore, RestoreFromDamagedImagesLeavesNothing) {
  const std::set<pid_t> before = all_processes();
  const pid_t pid = (start(), program_->pid());
  dump_and_kill();
  for (const std::string& name :
       {"pagemap-" + std::to_string(pid) + ".img", std::string("pstree.img")}) {
    fs::resize_file(images() / name, fs::file_size(images() / name) / 2 + 1);
    const auto tree = restore(criu_command(), images());
    ASSERT_FALSE(tree) << name;
    EXPECT_EQ(all_processes(), before) << name;
  }
}

TEST_F(DumpRestore, RestoreWithAMissingReaperIsAnError) {
  start();
  dump_and_kill();
  const auto tree = restore(Command{criu_command().argv, "/no/such/reaper"}, images());
  ASSERT_FALSE(tree);
  EXPECT_NE(tree.error().message().find("/no/such/"), std::string::npos) << tree.error().message();
}

}  // namespace
}  // namespace gcr::criu::test
