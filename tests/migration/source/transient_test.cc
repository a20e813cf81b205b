#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/migration/source/member.h"

namespace gcr::migration {
namespace {

/// A child that lives for `milliseconds`.
pid_t start_child(unsigned milliseconds) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::usleep(milliseconds * 1000);
    ::_exit(0);
  }
  return pid;
}

journal::ProcessIds members(std::initializer_list<pid_t> pids) {
  journal::ProcessIds ids;
  for (const pid_t pid : pids) {
    *ids.Add() = id_of(pid, procfs::read_stat(pid)->start_time);
  }
  return ids;
}

TEST(Transient, EndingMemberIsWaitedFor) {
  const pid_t child = start_child(200);
  EXPECT_TRUE(any_member_ends(members({::getpid(), child})));
  ::waitpid(child, nullptr, 0);
}

TEST(Transient, EndedMemberAndReusedPidAreRecognised) {
  const pid_t child = start_child(0);
  journal::ProcessIds ids = members({::getpid(), child});
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(any_member_ends(ids)) << "no process has the PID";
  ids.rbegin()->set_pid(::getpid());
  ids.rbegin()->set_start_time(1);
  EXPECT_TRUE(any_member_ends(ids)) << "another process has it";
}

TEST(Transient, WaitForARunningMemberIsBounded) {
  const pid_t child = start_child(600'000);
  EXPECT_FALSE(any_member_ends(members({::getpid(), child})));
  EXPECT_FALSE(any_member_ends(members({child}))) << "the first alone";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace gcr::migration
