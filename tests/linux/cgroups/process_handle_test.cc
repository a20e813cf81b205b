// PIDs of ended processes are reused, and no signal for the first process reaches the second: every
// signal is sent through a pidfd of the intended process.
#include "migrate-agent/linux/procfs/process_handle.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/linux/ptrace/frozen_threads.h"
#include "migrate-agent/linux/ptrace/tracing.h"
#include "migrate-agent/migration/undo/recovery.h"
#include "tests/criu/whole_runs.h"
#include "tests/linux/cgroups/support.h"
#include "tests/support/ready_child.h"

namespace gcr::procfs {
namespace {

using cgroups::Sleeper;

/// Runs `body` in a PID namespace of its own, whose next PID can be chosen; returns its exit
/// status.
template <class Body>
int in_new_namespace(Body body) {
  const pid_t outer = ::fork();
  if (outer == 0) {
    if (::unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) ::_exit(100);
    const pid_t init = ::fork();
    if (init == 0) {
      if (::mount(nullptr, "/", nullptr, MS_PRIVATE | MS_REC, nullptr) != 0) ::_exit(101);
      if (::mount("proc", "/proc", "proc", 0, nullptr) != 0) ::_exit(102);
      ::_exit(body());
    }
    int status = 0;
    ::waitpid(init, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 103);
  }
  int status = 0;
  ::waitpid(outer, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 104;
}

bool next_number_is(pid_t pid) {
  const int file = ::open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
  const std::string text = std::to_string(pid - 1);
  const bool written = ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(file);
  return written;
}

TEST(ReusedNumber, HandleOfTheOldProcessDoesNotSignalIt) {
  EXPECT_EQ(in_new_namespace([] {
              Sleeper first;
              const auto process = Process::open(first.pid());
              if (!process) return 1;
              const pid_t number = first.pid();
              first.end();
              if (!next_number_is(number)) return 2;
              Sleeper second;
              if (second.pid() != number) return 3;
              if (process->send(SIGKILL)) return 4;
              if (!process->has_ended()) return 5;
              if (criu::resume_stopped(*process)) return 6;
              if (!criu::kill_stopped(*process)) return 7;
              if (tracing::FrozenThreads::seize({*process}, {})) return 8;
              if (tracing::HeldThreads(*process).hold_all_but(number)) return 9;
              if (Process::open(number, process->start_time() - 1)) return 10;
              return second.untouched() ? 0 : 11;
            }),
            0);
}

/// The journal's record of a process that has ended and whose PID was reused.
TEST(ReusedNumber, RecoveryDoesNotSignalIt) {
  const Sleeper other;
  const std::uint64_t started = Process::open(other.pid()).value().start_time();
  journal::ProcessId ended;
  ended.set_pid(other.pid());
  ended.set_start_time(started - 1);
  journal::Restored restored;
  *restored.add_members() = ended;
  *restored.mutable_init() = ended;
  EXPECT_TRUE(undo::end_stopped({ended}, {}));
  EXPECT_TRUE(undo::destroy_restored(restored, {}));
  const Status resumed = undo::resume_restored(restored, {});
  ASSERT_FALSE(resumed);
  EXPECT_EQ(resumed.error().code(), Code::kNotFound) << resumed.error().message();
  undo::Lost lost;
  lost.members = {ended};
  lost.detaching = true;
  const auto found = undo::bring_back(lost);
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_EQ(*found, undo::Found::kGone);
  EXPECT_TRUE(other.untouched());
}

/// A child that traces all threads of `traced` but the first, until it is killed.
pid_t tracer_of(pid_t traced) {
  return test::fork_ready([traced] {
    std::vector<pid_t> tids;
    while (tids.size() < 2) tids = threads(traced);
    return std::ranges::all_of(tids, [traced](pid_t tid) {
      return tid == traced || ::ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) == 0;
    });
  });
}

TEST(KilledProcess, WaitIsBoundedWhileAnotherProcessTracesIt) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::thread([] {
      for (;;) ::pause();
    }).join();
  }
  const pid_t tracer = tracer_of(pid);
  const Process process = Process::open(pid).value();
  ASSERT_TRUE(process.send(SIGKILL));
  const Status waited = process.wait_until_ended(std::chrono::milliseconds(200));
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().code(), Code::kTimeout);
  EXPECT_THAT(waited.error().message(), testing::HasSubstr("has not ended within 200 ms"));
  ::kill(tracer, SIGKILL);
  ::waitpid(tracer, nullptr, 0);
  EXPECT_TRUE(process.wait_until_ended());
  ::waitpid(pid, nullptr, 0);
}

}  // namespace
}  // namespace gcr::procfs
