// One thread runs while the rest of its process is held, and nothing runs when the tracer dies.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/linux/ptrace/tracing.h"
#include "tests/criu/program.h"

namespace gcr::criu::test {
namespace {

class Held : public testing::Test {
 protected:
  void SetUp() override {
    wait_for_progress(file(), {}, 5);
    ASSERT_GE(output().tids.size(), 2u);
  }

  std::filesystem::path file() const { return directory_.path() / "output"; }
  Output output() const { return read_output(file()); }

  /// Waits until one thread has counted further; no other did meanwhile.
  void expect_that_one_counts() {
    const Output before = output();
    const Output after =
        wait_for_output(file(), [&](const Output& now) { return now.lines >= before.lines + 10; });
    int counting = 0;
    for (const auto& [thread, numbers] : after.counts) {
      if (numbers.size() != before.counts.at(thread).size()) ++counting;
    }
    EXPECT_EQ(counting, 1);
  }

  void expect_that_all_count() { expect_gapless(wait_for_progress(file(), output(), 10)); }

  Directory directory_;
  Program program_{file(), "count"};
};

TEST_F(Held, OneThreadRunsFirstThenAll) {
  tracing::HeldThreads threads(program_.process());
  const Status held = threads.hold_all_but(output().tids.front());
  ASSERT_TRUE(held) << held.error().message();
  expect_that_one_counts();
  threads.release();
  expect_that_all_count();
}

TEST_F(Held, RepeatedlyStoppedProcessIsHeldAndReleased) {
  for (int i = 0; i < 3; ++i) {
    ::kill(program_.pid(), SIGSTOP);
    ASSERT_TRUE(procfs::wait_until_stopped(program_.pid()));
  }
  {
    tracing::HeldThreads threads(program_.process());
    const Status held = threads.hold_all_but(output().tids.front());
    ASSERT_TRUE(held) << held.error().message();
    expect_that_one_counts();
  }
  expect_that_all_count();
}

TEST_F(Held, KilledProcessEnds) {
  const procfs::Process process = program_.process();
  tracing::HeldThreads threads(process);
  ASSERT_TRUE(threads.hold_all_but(output().tids.front()));
  ::kill(program_.pid(), SIGKILL);
  while (procfs::state(std::to_string(program_.pid())) != 'Z') ::usleep(1000);
  threads.release();
  pollfd ended{process.pidfd(), POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 20'000), 1);
}

TEST_F(Held, DeathOfTheTracerLeavesTheProcessStopped) {
  const pid_t holder = ::fork();
  if (holder == 0) {
    tracing::HeldThreads threads(program_.process());
    if (!threads.hold_all_but(output().tids.front())) ::_exit(1);
    for (;;) ::pause();
  }
  while (procfs::status_field(std::to_string(program_.pid()), "TracerPid") == "0") ::usleep(1000);
  expect_that_one_counts();
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  ASSERT_TRUE(procfs::wait_until_stopped(program_.pid()));
  ASSERT_TRUE(resume_stopped(program_.process()));
  expect_that_all_count();
}

TEST_F(Held, MissingThreadIsAnErrorAndAllResume) {
  {
    tracing::HeldThreads threads(program_.process());
    const Status held = threads.hold_all_but(1);
    ASSERT_FALSE(held);
    EXPECT_EQ(held.error().code(), Code::kNotFound) << held.error().message();
  }
  expect_that_all_count();
}

}  // namespace
}  // namespace gcr::criu::test
