// The kernel knows who owns a journal: two owners, dead owners, and queries.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "migrate-agent/commit/journal/journal_files.h"
#include "src/base/unique_fd.h"
#include "tests/commit/journal/support.h"

namespace gcr::journal::test {
namespace {

class OwnerTest : public testing::Test {
 protected:
  /// A child that owns the journal when this returns; it ran `first` before.
  pid_t owner(const std::function<void()>& first = {}) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    const UniqueFd ready(ends[0]);
    UniqueFd report(ends[1]);
    const pid_t child = start_child([&] {
      static const auto kept = Journal::open(path_, Lock::kTry);
      if (first) first();
      if (kept) static_cast<void>(!::write(report.get(), "x", 1));
    });
    report.reset();
    char got = 0;
    EXPECT_EQ(::read(ready.get(), &got, 1), 1);
    return child;
  }

  StateDir dir_;
  const std::filesystem::path path_ = begin(dir_.path()).path();
};

/// A thread that opens the journal; a test can wait until it blocks.
class Opener {
 public:
  Opener(const std::filesystem::path& path, Lock how)
      : thread_([this, path, how] {
          tid_ = ::gettid();
          tid_.notify_one();
          result_.set_value(Journal::open(path, how));
        }) {
    tid_.wait(0);
    wait_until_in(tid_, SYS_flock, [this] {
      return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    });
  }
  ~Opener() { thread_.join(); }
  Opener(const Opener&) = delete;
  Opener& operator=(const Opener&) = delete;

  pthread_t handle() { return thread_.native_handle(); }
  Result<Journal> result() { return future_.get(); }

 private:
  std::atomic<pid_t> tid_ = 0;
  std::promise<Result<Journal>> result_;
  std::future<Result<Journal>> future_ = result_.get_future();
  std::thread thread_;
};

TEST_F(OwnerTest, OnlyOneProcessOwnsAJournal) {
  EXPECT_FALSE(is_owned(path_).value());
  const auto first = Journal::open(path_, Lock::kTry);
  ASSERT_TRUE(first);
  EXPECT_TRUE(is_owned(path_).value());
  EXPECT_EQ(Journal::open(path_, Lock::kTry).error().code(), Code::kUnavailable);
}

TEST_F(OwnerTest, CreatorIsTheOwner) {
  const Journal journal = begin(dir_.path());
  EXPECT_TRUE(is_owned(journal.path()).value());
  EXPECT_EQ(Journal::open(journal.path(), Lock::kTry).error().code(), Code::kUnavailable);
}

TEST_F(OwnerTest, MissingJournalIsNotOwned) {
  EXPECT_FALSE(is_owned(dir_.path() / "nothing").value());
}

TEST_F(OwnerTest, NextOwnerWaitsForTheEndOfTheLast) {
  const pid_t last = owner();
  EXPECT_TRUE(is_owned(path_).value());
  Opener next(path_, Lock::kWait);
  EXPECT_TRUE(is_owned(path_).value());
  kill_and_reap(last);
  EXPECT_TRUE(next.result());
}

TEST_F(OwnerTest, ChildProcessesAreNoOwners) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const UniqueFd input(ends[0]);
  const UniqueFd keeps_the_helper(ends[1]);
  kill_and_reap(owner([&] {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input.get(), STDIN_FILENO);
    posix_spawn_file_actions_addclose(&actions, keeps_the_helper.get());
    std::string name = "cat";
    std::array<char*, 2> words{name.data(), nullptr};
    pid_t helper = 0;
    EXPECT_EQ(::posix_spawnp(&helper, "cat", &actions, nullptr, words.data(), environ), 0);
  }));
  // The owner may have died before the helper had executed its program.
  EXPECT_TRUE(Journal::open(path_, Lock::kWait));
}

std::atomic<int> signals = 0;

void handle_signals(int flags) {
  struct sigaction action {};
  action.sa_handler = [](int) { ++signals; };
  action.sa_flags = flags;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
}

TEST_F(OwnerTest, SignalEndsNoWait) {
  handle_signals(0);
  signals = 0;
  std::optional<Journal> last(Journal::open(path_, Lock::kTry).value());
  Opener next(path_, Lock::kWait);
  ::pthread_kill(next.handle(), SIGUSR1);
  while (signals == 0) std::this_thread::yield();
  last.reset();
  EXPECT_TRUE(next.result());
}

TEST_F(OwnerTest, JournalRemovedDuringTheWaitIsNotFound) {
  std::optional<Journal> last(Journal::open(path_, Lock::kTry).value());
  Opener next(path_, Lock::kWait);
  std::filesystem::remove(path_);
  last.reset();
  EXPECT_EQ(next.result().error().code(), Code::kNotFound);
}

TEST_F(OwnerTest, QueriesDoNotDisturbTheOwner) {
  std::atomic<bool> over = false;
  std::atomic<int> asked = 0;
  const auto ask = [&] {
    while (!over) {
      EXPECT_TRUE(is_owned(path_));
      ++asked;
    }
  };
  std::thread one(ask);
  std::thread other(ask);
  for (int i = 0; i < 200; ++i) {
    EXPECT_TRUE(Journal::open(path_, Lock::kTry));
    const int before = asked;
    while (asked == before) std::this_thread::yield();
  }
  over = true;
  one.join();
  other.join();
}

TEST_F(OwnerTest, ConcurrentQueriesSeeNoOwner) {
  std::vector<std::thread> askers;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 3; ++i) {
    askers.emplace_back([&] {
      for (int asked = 0; asked < 2000; ++asked) wrong += is_owned(path_).value() ? 1 : 0;
    });
  }
  for (std::thread& asker : askers) asker.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace gcr::journal::test
