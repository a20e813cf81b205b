// A group that holds a process, and outsiders that try to wake it.
#include "migrate-agent/linux/cgroups/group.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "migrate-agent/linux/procfs/procfs.h"
#include "tests/linux/cgroups/support.h"

namespace gcr::cgroups {
namespace {

/// Iterations of a program's loops, in memory that it shares with the test.
struct Turns {
  std::atomic<std::uint64_t> main;
  std::atomic<std::uint64_t> thread;
};

void* count(void* turns) {
  for (;;) ++static_cast<Turns*>(turns)->thread;
}

/// Two threads that count as fast as they can; with `own_timer`, a timer of the program wakes it
/// every millisecond.
class Counter {
 public:
  explicit Counter(bool own_timer) {
    void* memory =
        ::mmap(nullptr, sizeof(Turns), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    turns_ = new (memory) Turns{};
    const pid_t pid = ::fork();
    if (pid == 0) run(own_timer);
    process_.emplace(procfs::Process::open(pid).value());
  }
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;
  ~Counter() {
    (void)process_->send(SIGKILL);
    ::waitpid(process_->pid(), nullptr, 0);
    ::munmap(turns_, sizeof(Turns));
  }

  const procfs::Process& process() const { return *process_; }
  std::uint64_t turns() const { return turns_->main + turns_->thread; }

  /// Returns once it has counted further.
  bool counts() const {
    const std::uint64_t before = turns();
    for (int i = 0; i < 10000 && turns() == before; ++i) ::poll(nullptr, 0, 1);
    return turns() != before;
  }

 private:
  [[noreturn]] void run(bool own_timer) {
    if (own_timer) {
      sigevent event{};
      event.sigev_notify = SIGEV_SIGNAL;
      event.sigev_signo = SIGCONT;
      timer_t timer{};
      const itimerspec often{{0, 1'000'000}, {0, 1'000'000}};
      if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) ::_exit(2);
      if (::timer_settime(timer, 0, &often, nullptr) != 0) ::_exit(2);
    }
    pthread_t thread{};
    if (::pthread_create(&thread, nullptr, count, turns_) != 0) ::_exit(2);
    for (;;) ++turns_->main;
  }

  Turns* turns_ = nullptr;
  std::optional<procfs::Process> process_;
};

class Freezer : public testing::TestWithParam<Hierarchy> {
 protected:
  void TearDown() override { EXPECT_TRUE(group_.destroy()); }

  /// Every thread has been sent SIGCONT repeatedly, and the kernel has had every chance to run it.
  static void wake(const Counter& counter) {
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(counter.process().send(SIGCONT));
      ::poll(nullptr, 0, 1);
    }
  }

  Group group_{{GetParam()}, fmt::format("gcr-group-test-{}", ::getpid())};
};

TEST_P(Freezer, FrozenProcessIgnoresSigcontAndItsTimer) {
  for (const bool own_timer : {false, true}) {
    Counter counter(own_timer);
    ASSERT_TRUE(counter.counts());
    ASSERT_TRUE(group_.create());
    ASSERT_TRUE(group_.add(counter.process()));
    ASSERT_TRUE(counter.process().send(SIGSTOP));
    const Status frozen = group_.freeze();
    ASSERT_TRUE(frozen) << frozen.error().message();
    const std::uint64_t before = counter.turns();
    wake(counter);
    EXPECT_EQ(counter.turns(), before);
    EXPECT_TRUE(group_.is_frozen().value());
    ASSERT_TRUE(group_.thaw());
    ASSERT_TRUE(counter.process().send(SIGCONT));
    EXPECT_TRUE(counter.counts());
  }
}

TEST_P(Freezer, FreezesAProcessThatIsBeingStopped) {
  Counter counter(false);
  ASSERT_TRUE(counter.counts());
  ASSERT_TRUE(group_.create());
  ASSERT_TRUE(group_.add(counter.process()));
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(counter.process().send(i % 2 == 0 ? SIGSTOP : SIGCONT));
    ASSERT_TRUE(group_.freeze());
    ASSERT_TRUE(group_.thaw());
  }
}

TEST_P(Freezer, KillsFrozenProcessesWithoutRunningThem) {
  Counter counter(false);
  ASSERT_TRUE(counter.counts());
  ASSERT_TRUE(group_.create());
  ASSERT_TRUE(group_.add(counter.process()));
  ASSERT_TRUE(group_.freeze());
  const std::uint64_t before = counter.turns();
  ASSERT_TRUE(group_.destroy());
  EXPECT_TRUE(counter.process().has_ended());
  EXPECT_EQ(counter.turns(), before);
  EXPECT_FALSE(group_.exists());
  EXPECT_TRUE(group_.destroy()) << "a second call succeeds";
}

TEST_P(Freezer, ReturnsAProcessToItsOldGroup) {
  Counter counter(false);
  const std::string home = group_.home_of(counter.process().pid()).value();
  ASSERT_TRUE(group_.create());
  ASSERT_TRUE(group_.add(counter.process()));
  EXPECT_NE(group_.home_of(counter.process().pid()).value(), home);
  ASSERT_TRUE(group_.freeze());
  const Status dissolved = group_.dissolve([&](pid_t) { return home; });
  ASSERT_TRUE(dissolved) << dissolved.error().message();
  EXPECT_EQ(group_.home_of(counter.process().pid()).value(), home);
  EXPECT_FALSE(group_.exists());
  EXPECT_TRUE(counter.counts());
}

TEST_P(Freezer, UsesTheCallersGroupIfTheOldOneIsGone) {
  Counter counter(false);
  ASSERT_TRUE(group_.create());
  ASSERT_TRUE(group_.add(counter.process()));
  ASSERT_TRUE(group_.dissolve([](pid_t) { return "/gcr-never-was"; }));
  EXPECT_EQ(group_.home_of(counter.process().pid()).value(),
            group_of(GetParam(), ::getpid()).value());
}

INSTANTIATE_TEST_SUITE_P(Version, Freezer, testing::ValuesIn(all_with(kFreezer)),
                         [](const auto& info) {
                           return fmt::format("{}", static_cast<int>(info.param.version));
                         });

TEST(Hierarchies, VersionTwoComesFirst) {
  const auto found = hierarchies(
      "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
      "36 31 0:33 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n"
      "37 31 0:34 /docker/1 /sys/fs/cgroup/freezer rw,nosuid shared:9 - cgroup cgroup rw,freezer\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].version, Version::kTwo);
  EXPECT_EQ(found[0].mount, "/sys/fs/cgroup/unified");
  EXPECT_EQ(found[0].directory_of("/a/b"), "/sys/fs/cgroup/unified/a/b");
  EXPECT_EQ(found[0].directory_of("/../a"), std::nullopt) << "outside of the visible groups";
  EXPECT_TRUE(found[1].has("devices"));
  EXPECT_EQ(found[2].version, Version::kOne);
  EXPECT_TRUE(found[2].has(kFreezer));
  EXPECT_EQ(found[2].directory_of("/docker/1/a"), "/sys/fs/cgroup/freezer/a");
  EXPECT_EQ(found[2].directory_of("/docker/12"), std::nullopt);
}

TEST(Hierarchies, AreEmptyWithoutMounts) {
  EXPECT_THAT(hierarchies("31 23 0:28 / / rw - ext4 /dev/sda rw\n"), testing::IsEmpty());
}

}  // namespace
}  // namespace gcr::cgroups
