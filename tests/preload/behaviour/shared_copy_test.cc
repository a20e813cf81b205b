// Copies that threads share: each byte once, by several threads, none of which stays.
#include "preload/shared_copy.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "src/base/units.h"
#include "tests/support/wait_until.h"

namespace gcr::preload {
namespace {

using test::wait_until;

std::size_t threads_now() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

void copy_plainly(void*, char* to, const char* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

std::size_t processors() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

/// Copies, counts the copied bytes, and waits until the expected number of threads has arrived.
/// Without locks: the C library does not know these threads.
struct Watched {
  const std::size_t expected = std::min<std::size_t>(processors(), 4);
  std::atomic<long> threads[64] = {};
  std::atomic<std::size_t> count{0};
  std::atomic<std::size_t> bytes{0};
  std::atomic<bool> missed{false};

  void note_this_thread() {
    const long tid = ::syscall(SYS_gettid);
    for (std::atomic<long>& known : threads) {
      if (known == tid) return;
      long none = 0;
      if (!known.compare_exchange_strong(none, tid)) continue;
      ++count;
      return;
    }
  }

  static void copy(void* context, char* to, const char* from, std::size_t bytes) {
    auto& watched = *static_cast<Watched*>(context);
    std::memcpy(to, from, bytes);
    watched.bytes += bytes;
    watched.note_this_thread();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (watched.count < watched.expected && !watched.missed) {
      if (std::chrono::steady_clock::now() > deadline) watched.missed = true;
      ::sched_yield();
    }
  }
};

TEST(SharedCopy, UsesAThreadPerProcessor) {
  const std::vector<char> from(64 * kMiB + 4711, 'x');
  std::vector<char> to(from.size());
  Watched watched;
  copy_together(&Watched::copy, &watched, to.data(), from.data(), from.size());
  EXPECT_EQ(to, from);
  EXPECT_EQ(watched.bytes, from.size());
  EXPECT_EQ(watched.count, watched.expected);
}

TEST(SharedCopy, ThreadsEndWhenIdleAndRestart) {
  const std::size_t before = threads_now();
  for (int round = 0; round < 3; ++round) {
    const std::vector<char> from(8 * kMiB, static_cast<char>(round));
    std::vector<char> to(from.size());
    copy_together(copy_plainly, nullptr, to.data(), from.data(), from.size());
    EXPECT_EQ(to, from);
    EXPECT_TRUE(wait_until([&] { return threads_now() == before; }));
  }
}

TEST(SharedCopy, ConsecutiveCopiesAreComplete) {
  std::vector<char> from(2 * kMiB + 1);
  std::vector<char> to(from.size());
  for (int round = 0; round < 300; ++round) {
    std::ranges::fill(from, static_cast<char>(round));
    const std::size_t bytes = from.size() - static_cast<std::size_t>(round) * 3000;
    copy_together(copy_plainly, nullptr, to.data(), from.data(), bytes);
    ASSERT_EQ(std::memcmp(to.data(), from.data(), bytes), 0) << round;
  }
}

TEST(SharedCopy, ConcurrentCopiesAreComplete) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&wrong, thread] {
      std::vector<char> from(3 * kMiB);
      std::vector<char> to(from.size());
      for (int round = 0; round < 100; ++round) {
        std::ranges::fill(from, static_cast<char>(thread * 50 + round));
        copy_together(copy_plainly, nullptr, to.data(), from.data(), from.size());
        if (to != from) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

/// A copy that is larger than the maximum number of pieces allows: the pieces are larger.
TEST(SharedCopy, LargeCopiesAreComplete) {
  const std::size_t bytes = 3 * kGiB + 12'345;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const from = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  ASSERT_NE(from, MAP_FAILED);
  struct Counted {
    std::atomic<std::size_t> bytes{0};
    std::atomic<std::size_t> pieces{0};
  } counted;
  const CopyPiece count = [](void* context, char* to, const char*, std::size_t piece) {
    auto& counted = *static_cast<Counted*>(context);
    counted.bytes += piece;
    ++counted.pieces;
    *to = 1;
  };
  copy_together(count, &counted, from, from, bytes);
  EXPECT_EQ(counted.bytes, bytes);
  EXPECT_LE(counted.pieces, 4096u);
  ::munmap(from, bytes);
}

/// No signal of the process reaches its threads: those of the program must handle it.
TEST(SharedCopy, ItsThreadsBlockSignals) {
  static std::atomic<long> taken_by{0};
  struct sigaction action {};
  action.sa_handler = [](int) { taken_by = ::syscall(SYS_gettid); };
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  const CopyPiece send = [](void*, char*, const char*, std::size_t) {
    ::kill(::getpid(), SIGUSR1);
  };
  std::vector<char> memory(8 * kMiB);
  copy_together(send, nullptr, memory.data(), memory.data(), memory.size());
  EXPECT_TRUE(wait_until([] { return taken_by != 0; }));
  EXPECT_EQ(taken_by, ::syscall(SYS_gettid));
  ::sigaction(SIGUSR1, &before, nullptr);
}

}  // namespace
}  // namespace gcr::preload
