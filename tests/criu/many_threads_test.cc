// A process with many threads: several tracers hold a part of them each, and none is missed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "migrate-agent/criu/threads/apart.h"
#include "migrate-agent/criu/threads/settings.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/linux/ptrace/frozen_threads.h"
#include "tests/support/ready_child.h"

namespace gcr::criu::test {
namespace {

constexpr unsigned kThreads = 200;
constexpr std::uint64_t kFirstSlack = 60'000;
constexpr char kSlack[] = "timer-slack";

/// The child's report about itself.
struct Told {
  std::atomic<unsigned> ready{0};
  std::atomic<pid_t> tids[kThreads]{};
};

/// Each with a different timer slack; they wait, with and without a time limit.
void wait_with_slack(Told& told, unsigned number) {
  ::prctl(PR_SET_TIMERSLACK, kFirstSlack + number);
  told.tids[number] = static_cast<pid_t>(::syscall(SYS_gettid));
  ++told.ready;
  for (;;) ::poll(nullptr, 0, number % 2 == 0 ? -1 : 3'600'000);
}

class ManyThreads : public testing::Test {
 protected:
  void SetUp() override {
    void* const shared =
        ::mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(shared, MAP_FAILED);
    told_ = new (shared) Told;
    pid_ = gcr::test::fork_ready([this] {
      for (unsigned i = 0; i < kThreads; ++i) {
        std::thread([this, i] { wait_with_slack(*told_, i); }).detach();
      }
      while (told_->ready < kThreads) std::this_thread::yield();
      return true;
    });
    ASSERT_GT(pid_, 0);
    ASSERT_EQ(::kill(pid_, SIGSTOP), 0);
    ASSERT_TRUE(procfs::wait_until_stopped(pid_));
  }

  void TearDown() override {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::munmap(told_, sizeof(Told));
  }

  /// By thread id.
  std::map<pid_t, std::uint64_t> read_slacks() const {
    std::map<pid_t, std::uint64_t> slacks;
    const auto observed = read_settings({pid_}, {});
    EXPECT_TRUE(observed) << observed.error().message();
    if (!observed) return slacks;
    for (const proto::Setting& setting : observed->front().settings) {
      if (setting.name() == kSlack) slacks[setting.thread()] = setting.value();
    }
    return slacks;
  }

  std::map<pid_t, std::uint64_t> slacks_from(std::uint64_t first) const {
    std::map<pid_t, std::uint64_t> slacks;
    for (unsigned i = 0; i < kThreads; ++i) slacks[told_->tids[i]] = first + i;
    return slacks;
  }

  void expect_all_stopped() const {
    for (const pid_t tid : procfs::threads(pid_)) {
      EXPECT_EQ(procfs::state(std::to_string(pid_) + "/task/" + std::to_string(tid)), 'T');
    }
  }

  Told* told_ = nullptr;
  pid_t pid_ = -1;
};

TEST_F(ManyThreads, SettingsOfEachAreReadAndSet) {
  EXPECT_EQ(read_slacks(), slacks_from(kFirstSlack));
  expect_all_stopped();
  Settings wanted;
  for (const auto& [tid, slack] : slacks_from(2 * kFirstSlack)) {
    proto::Setting& setting = *wanted.Add();
    setting.set_name(kSlack);
    setting.set_thread(tid);
    setting.set_value(slack);
  }
  const auto refused = apply_settings({{pid_, wanted}}, {});
  ASSERT_TRUE(refused) << refused.error().message();
  EXPECT_THAT(*refused, testing::IsEmpty());
  EXPECT_EQ(read_slacks(), slacks_from(2 * kFirstSlack));
  expect_all_stopped();
}

TEST_F(ManyThreads, AllButTheSelectedAreHeld) {
  auto process = procfs::Process::open(pid_);
  ASSERT_TRUE(process);
  std::vector<procfs::Process> processes;
  processes.push_back(std::move(*process));
  const std::set<pid_t> running{told_->tids[kThreads / 2], told_->tids[kThreads - 1]};
  auto frozen = tracing::FrozenThreads::seize(processes, running);
  ASSERT_TRUE(frozen) << frozen.error().message();
  EXPECT_EQ(frozen->count(), kThreads + 1 - running.size());  // and the first
  for (const pid_t tid : procfs::threads(pid_)) {
    const char state = procfs::state(std::to_string(pid_) + "/task/" + std::to_string(tid));
    EXPECT_EQ(state == 't', !running.contains(tid)) << tid << " is " << state;
  }
  ASSERT_TRUE(frozen->stop_again());
  expect_all_stopped();
}

TEST(Apart, ErrorOfOneEndsAll) {
  std::atomic<int> went_on{0};
  const Status done = run_apart(3, [&](std::size_t number, Meeting& others) -> Status {
    GCR_TRY(others.meet({}));
    GCR_TRY(others.meet(number == 1 ? Status(Error(Code::kTimeout, "one")) : Status()));
    ++went_on;
    return {};
  });
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code(), Code::kTimeout);
  EXPECT_EQ(went_on, 0);
}

TEST(Apart, LastToArriveRunsTheCommonStep) {
  std::atomic<int> times{0};
  const auto once = [&]() -> Status {
    ++times;
    return {};
  };
  EXPECT_TRUE(run_apart(4, [&](std::size_t, Meeting& others) -> Status {
    GCR_TRY(others.meet({}, once));
    return others.meet({}, once);
  }));
  EXPECT_EQ(times, 2);
}

TEST(Apart, EndedThreadIsNotWaitedFor) {
  const Status done = run_apart(3, [](std::size_t number, Meeting& others) -> Status {
    GCR_TRY(others.meet({}));
    if (number == 2) ::_exit(1);
    return others.meet({});
  });
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code(), Code::kInternal);
}

}  // namespace
}  // namespace gcr::criu::test
