// Restored threads stay stopped except selected ones, and continue the system calls that they were
// in.
#include "migrate-agent/linux/ptrace/frozen_threads.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "tests/criu/program.h"
#include "tests/criu/whole_runs.h"

namespace gcr::criu::test {
namespace {

namespace fs = std::filesystem;

class Frozen : public testing::Test {
 protected:
  fs::path file() const { return directory_.path() / "output"; }

  /// Starts the program, and moves it into a namespace of its own, stopped; stores its thread ids.
  void start_restored(const std::string& mode) {
    Program program(file(), mode);
    const Output running = wait_for_progress(file(), {}, 5);
    tids_ = running.tids;
    const fs::path images = directory_.make("images");
    const auto report = dump(criu_command(), program.pid(), images);
    ASSERT_TRUE(report) << report.error().message();
    ASSERT_TRUE(kill_stopped(program.process()));
    program.reap();
    auto tree = restore(criu_command(), images);
    ASSERT_TRUE(tree) << tree.error().message();
    tree_ = std::make_unique<RestoredTree>(std::move(*tree));
    stopped_ = read_output(file());
  }

  static std::string tracer_of(pid_t pid) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("TracerPid:")) return line.substr(11);
    }
    return "";
  }

  Directory directory_;
  std::vector<pid_t> tids_;
  Output stopped_;
  std::unique_ptr<RestoredTree> tree_;
};

TEST_F(Frozen, OnlyTheExceptedThreadRunsUntilTheRelease) {
  ASSERT_NO_FATAL_FAILURE(start_restored("count"));
  auto frozen = tracing::FrozenThreads::seize({tree_->root()}, {tids_[0]});
  ASSERT_TRUE(frozen) << frozen.error().message();
  EXPECT_EQ(frozen->count(), tids_.size());  // the main thread is not in tids_, one is selected
  const Output now = wait_for_output(file(), [this](const Output& output) {
    return output.counts.at(0).size() >= stopped_.counts.at(0).size() + 30;
  });
  for (const auto& [thread, numbers] : now.counts) {
    if (thread == 0) continue;
    EXPECT_EQ(numbers, stopped_.counts.at(thread)) << "thread " << thread;
  }
  ASSERT_TRUE(frozen->release());
  EXPECT_EQ(tracer_of(tree_->pid()), "0");
  expect_gapless(wait_for_progress(file(), now, 20));
}

TEST_F(Frozen, StopAgainStopsEveryThreadAndDetaches) {
  ASSERT_NO_FATAL_FAILURE(start_restored("count"));
  auto frozen = tracing::FrozenThreads::seize({tree_->root()}, {tids_[1], tids_[2]});
  ASSERT_TRUE(frozen) << frozen.error().message();
  ASSERT_TRUE(frozen->stop_again());
  EXPECT_EQ(tracer_of(tree_->pid()), "0");
  for (const pid_t tid : procfs::threads(tree_->pid())) EXPECT_EQ(state_of(tid), 'T');
  EXPECT_FALSE(frozen->release());
  const Output now = read_output(file());
  ASSERT_TRUE(resume_stopped(tree_->root()));
  expect_gapless(wait_for_progress(file(), now, 20));
}

TEST_F(Frozen, DestructionWithoutReleaseLeavesTheProcessStopped) {
  ASSERT_NO_FATAL_FAILURE(start_restored("count"));
  {
    auto frozen = tracing::FrozenThreads::seize({tree_->root()}, {tids_[0]});
    ASSERT_TRUE(frozen) << frozen.error().message();
  }
  EXPECT_EQ(state_of(tree_->pid()), 'T');
  EXPECT_EQ(tracer_of(tree_->pid()), "0");
}

TEST_F(Frozen, UnknownThreadIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start_restored("count"));
  const auto frozen = tracing::FrozenThreads::seize({tree_->root()}, {tids_[0], 1});
  ASSERT_FALSE(frozen);
  EXPECT_EQ(frozen.error().code(), Code::kNotFound);
  EXPECT_EQ(state_of(tree_->pid()), 'T');
  EXPECT_EQ(tracer_of(tree_->pid()), "0");
}

TEST_F(Frozen, DeathOfTheTracerKillsTheUncommittedCopy) {
  ASSERT_NO_FATAL_FAILURE(start_restored("count"));
  const pid_t holder = ::fork();
  if (holder == 0) {
    const auto frozen = tracing::FrozenThreads::seize({tree_->root()}, {tids_[0]});
    ::kill(::getpid(), SIGKILL);
    ::_exit(frozen ? 0 : 1);
  }
  ASSERT_EQ(::waitpid(holder, nullptr, 0), holder);
  const pid_t init = tree_->init().pid();
  tree_->release();
  ASSERT_EQ(::waitpid(init, nullptr, 0), init);  // the last task of the namespace has ended
}

TEST_F(Frozen, BlockingCallsContinueAfterRestoreAndRelease) {
  ASSERT_NO_FATAL_FAILURE(start_restored("wait"));
  auto frozen = tracing::FrozenThreads::seize({tree_->root()}, {tids_[0]});
  ASSERT_TRUE(frozen) << frozen.error().message();
  ASSERT_TRUE(frozen->release());
  expect_gapless(wait_for_progress(file(), read_output(file()), 200));
}

TEST_F(Frozen, CallsInterruptedByAStopContinueToo) {
  const fs::path images = directory_.make("images");
  Program program(file(), "wait");
  const Output before = wait_for_progress(file(), {}, 5);
  ::kill(program.pid(), SIGSTOP);
  ASSERT_TRUE(procfs::wait_until_stopped(program.pid()));
  ::kill(program.pid(), SIGCONT);
  // epoll_wait ends each time its process is stopped and continued, moved or not.
  const Output continued = wait_for_output(file(), [](const Output& output) {
    return output.others.size() == 1 && output.others[0].starts_with("returned epoll_wait");
  });
  wait_for_progress(file(), continued, 50);
  const auto report = dump(criu_command(), program.pid(), images);
  ASSERT_TRUE(report) << report.error().message();
  ASSERT_TRUE(kill_stopped(program.process()));
  auto tree = restore(criu_command(), images);
  ASSERT_TRUE(tree) << tree.error().message();
  ASSERT_TRUE(resume_stopped(tree->root()));
  // Raw futex calls cannot be recognised (interrupted_calls.h); all their callers handle EINTR.
  for (const std::string& line : wait_for_progress(file(), read_output(file()), 200).others) {
    EXPECT_TRUE(line.starts_with("returned epoll_wait") || line.starts_with("returned futex"))
        << line;
  }
}

TEST_F(Frozen, BlockingCallsContinueAfterADump) {
  Program program(file(), "wait");
  wait_for_progress(file(), {}, 5);
  const auto report = dump(criu_command(), program.pid(), directory_.make("images"));
  ASSERT_TRUE(report) << report.error().message();
  ASSERT_TRUE(resume_stopped(program.process()));
  expect_gapless(wait_for_progress(file(), read_output(file()), 200));
}

}  // namespace
}  // namespace gcr::criu::test
