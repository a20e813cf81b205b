// The gate alone, without a driver: which threads wait, which pass, and that none is missed.
#include "preload/gate.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <latch>
#include <string>
#include <thread>
#include <vector>

namespace gcr::preload {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class GateTest : public testing::Test {
 protected:
  void SetUp() override { gate::prepare(); }
  void TearDown() override { gate::open(); }
};

/// Threads that pass the gate repeatedly and count it, until destroyed.
class Passers {
 public:
  explicit Passers(int count) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        while (!stop_.load(std::memory_order_relaxed)) {
          for (int burst = 0; burst < 1000; ++burst) {
            const GateScope scope;
            inside_.fetch_add(1);
            passed_.fetch_add(1);
            inside_.fetch_sub(1);
          }
          ::sched_yield();
        }
      });
    }
  }
  ~Passers() {
    stop_.store(true);
    gate::open();
    for (std::thread& thread : threads_) thread.join();
  }
  std::uint64_t passed() const { return passed_.load(); }
  int inside() const { return inside_.load(); }
  void wait_for_more() const {
    for (const std::uint64_t before = passed(); passed() == before;) ::sched_yield();
  }

 private:
  std::atomic<std::uint64_t> passed_{0};
  std::atomic<int> inside_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

/// A thread that stays inside the gate until told to leave.
class Dweller {
 public:
  Dweller() { entered_.wait(); }
  ~Dweller() {
    if (thread_.joinable()) leave();
  }
  void leave() {
    leave_.count_down();
    thread_.join();
  }

 private:
  std::latch entered_{1}, leave_{1};
  std::thread thread_{[this] {
    const GateScope scope;
    entered_.count_down();
    leave_.wait();
  }};
};

TEST_F(GateTest, ClosedGateBlocksAllThreadsUntilItOpens) {
  const Passers passers(3);
  for (int cycle = 0; cycle < 50; ++cycle) {
    passers.wait_for_more();
    ASSERT_TRUE(gate::close(seconds(30)));
    const std::uint64_t passed = passers.passed();
    for (int look = 0; look < 20; ++look) {
      ASSERT_EQ(passers.inside(), 0);
      ASSERT_EQ(passers.passed(), passed);
      ::sched_yield();
    }
    EXPECT_EQ(gate::in_flight(), 0u);
    gate::open();
  }
  passers.wait_for_more();
}

TEST_F(GateTest, ShortLivedThreadsAreCounted) {
  std::atomic<bool> stop{false};
  std::atomic<int> inside{0};
  std::atomic<int> ended{0};
  std::vector<std::thread> parents;
  for (int i = 0; i < 4; ++i) {
    parents.emplace_back([&] {
      while (!stop.load()) {
        std::thread([&] {
          const GateScope scope;
          inside.fetch_add(1);
          inside.fetch_sub(1);
        }).join();
        ended.fetch_add(1);
      }
    });
  }
  for (int cycle = 0; cycle < 50; ++cycle) {
    for (const int before = ended.load(); ended.load() == before;) ::sched_yield();
    ASSERT_TRUE(gate::close(seconds(30)));
    ASSERT_EQ(inside.load(), 0);
    gate::open();
  }
  stop.store(true);
  for (std::thread& parent : parents) parent.join();
  EXPECT_EQ(gate::in_flight(), 0u);
}

TEST_F(GateTest, ClosesAlthoughACallDoesNotReturn) {
  Dweller slow;
  EXPECT_EQ(gate::in_flight(), 1u);
  EXPECT_FALSE(gate::close(milliseconds(5)));
  EXPECT_TRUE(gate::is_closed());
  slow.leave();
  EXPECT_TRUE(gate::close(seconds(30)));
  EXPECT_TRUE(gate::is_closed());
}

TEST_F(GateTest, StepLetsOneCallPass) {
  ASSERT_TRUE(gate::close(seconds(30)));
  EXPECT_FALSE(gate::step()) << "no thread waits";
  {
    const Passers passers(3);
    while (gate::held() != 3) ::sched_yield();
    const std::uint64_t before = passers.passed();
    for (std::uint64_t steps = 1; steps <= 200; ++steps) {
      while (!gate::step()) ::sched_yield();  // a woken thread may get no processor in time
      ASSERT_TRUE(gate::close(seconds(30)));
      ASSERT_EQ(passers.passed(), before + steps);
      while (gate::held() != 3) ::sched_yield();
    }
    EXPECT_EQ(gate::in_flight(), 0u);
  }
  EXPECT_EQ(gate::held(), 0u);
}

TEST_F(GateTest, NestedCallsPassAClosingGate) {
  std::latch entered(1);
  std::thread nesting([&] {
    const GateScope outer;
    entered.count_down();
    while (!gate::is_closed()) ::sched_yield();
    const GateScope inner;
    const GateScope innermost;
  });
  entered.wait();
  EXPECT_TRUE(gate::close(seconds(30)));
  nesting.join();
}

TEST_F(GateTest, OneThreadAtATimeIsExclusive) {
  const Passers passers(2);
  std::atomic<int> alone{0};
  std::atomic<std::uint64_t> times{0};
  std::atomic<bool> stop{false}, wrong{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!stop.load()) {
        const GateScope outer, scope;
        const gate::Alone mine(seconds(30));
        if (!mine || alone.fetch_add(1) != 0) wrong.store(true);
        for (int look = 0; look < 20; ++look) {
          if (passers.inside() != 0) wrong.store(true);
          ::sched_yield();
        }
        times.fetch_add(1);
        alone.fetch_sub(1);
      }
    });
  }
  for (int cycle = 0; cycle < 20; ++cycle) {
    for (const std::uint64_t before = times.load(); times.load() < before + 3;) ::sched_yield();
    passers.wait_for_more();
    ASSERT_TRUE(gate::close(seconds(30)));
    const std::uint64_t before = times.load();
    for (int look = 0; look < 20; ++look) {
      EXPECT_EQ(alone.load(), 0);
      ::sched_yield();
    }
    EXPECT_EQ(times.load(), before);
    gate::step();
    gate::open();
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(wrong.load());
}

TEST_F(GateTest, ExclusiveAccessHasATimeout) {
  Dweller slow;
  {
    const GateScope scope;
    EXPECT_FALSE(gate::Alone(milliseconds(5)));
  }
  std::thread other([] { const GateScope passes; });
  other.join();
  slow.leave();
  const GateScope scope;
  EXPECT_TRUE(gate::Alone(seconds(30)));
}

TEST_F(GateTest, ExemptThreadPassesAndIsNotWaitedFor) {
  ASSERT_TRUE(gate::close(seconds(30)));
  std::latch entered(1), leave(1);
  std::thread exempt([&] {
    gate::exempt_this_thread();
    const GateScope scope;
    entered.count_down();
    leave.wait();
  });
  entered.wait();
  gate::open();
  EXPECT_EQ(gate::in_flight(), 0u);
  EXPECT_TRUE(gate::close(seconds(30)));
  leave.count_down();
  exempt.join();
}

TEST_F(GateTest, BlockedThreadSleepsInTheKernel) {
  ASSERT_TRUE(gate::close(seconds(30)));
  std::atomic<pid_t> tid{0};
  std::atomic<bool> passed{false};
  std::thread waiting([&] {
    tid.store(::gettid());
    const GateScope scope;
    passed.store(true);
  });
  while (tid.load() == 0) ::sched_yield();
  const std::string path = "/proc/self/task/" + std::to_string(tid.load()) + "/syscall";
  std::string call;
  while (call != std::to_string(SYS_futex)) std::ifstream(path) >> call;
  EXPECT_FALSE(passed.load());
  gate::open();
  waiting.join();
  EXPECT_TRUE(passed.load());
}

TEST_F(GateTest, ForkedChildFindsItOpenAndEmpty) {
  std::latch entered(1), leave(1);
  std::thread inside([&] {
    const GateScope scope;
    entered.count_down();
    leave.wait();
  });
  entered.wait();
  const pid_t child = ::fork();
  if (child == 0) {
    gate::reset_after_fork();
    bool good = gate::in_flight() == 0 && gate::close(seconds(10));
    gate::open();
    { const GateScope scope; }
    ::_exit(good ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  leave.count_down();
  inside.join();
}

/// As containers do: membarrier(2) returns EPERM.
bool forbid_membarrier() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST_F(GateTest, WorksWithoutMembarrier) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!forbid_membarrier() || gate::close(seconds(1))) ::_exit(1);  // the first time only
    gate::open();
    bool good = true;
    {
      const Passers passers(3);
      for (int cycle = 0; cycle < 30; ++cycle) {
        passers.wait_for_more();
        good = good && gate::close(seconds(30));
        const std::uint64_t passed = passers.passed();
        for (int look = 0; look < 20; ++look) {
          good = good && passers.inside() == 0 && passers.passed() == passed;
          ::sched_yield();
        }
        gate::open();
      }
    }
    ::_exit(good ? 0 : 2);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(GateTest, ErrnoSurvivesWaiting) {
  ASSERT_TRUE(gate::close(seconds(30)));
  std::atomic<bool> started{false};
  int seen = 0;
  std::thread waiting([&] {
    errno = 4711;
    started.store(true);
    const GateScope scope;
    seen = errno;
  });
  while (!started.load()) ::sched_yield();
  gate::open();
  waiting.join();
  EXPECT_EQ(seen, 4711);
}

}  // namespace
}  // namespace gcr::preload
