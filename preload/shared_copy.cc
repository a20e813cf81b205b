// One word (g_pieces) holds the number of the current copy, its pieces and how many are claimed.
// The copying thread publishes it and starts helpers that are not running; all threads claim pieces
// by compare and swap, and count finished ones in g_done. The copy ends when all pieces are done.
#include "preload/shared_copy.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>

namespace gcr::preload {
namespace {

using Clock = std::chrono::steady_clock;

/// Size of a piece: the driver copies 2 MiB at a time, which is two pieces per thread.
constexpr std::size_t kPieceBytes = std::size_t{256} << 10;
/// The most pieces of one copy; larger copies have larger pieces.
constexpr std::size_t kMostPieces = 4096;
/// More helpers did not make copies of 2 MiB faster (16 cores of an H200 host).
constexpr std::size_t kMostHelpers = 3;
constexpr std::size_t kHelperStackBytes = std::size_t{32} << 10;
/// How long a helper waits for the next copy; a checkpoint makes one about every 0.2 ms.
constexpr std::chrono::milliseconds kHelperPatience{2};

struct Helper {
  std::atomic<pid_t> tid{0};  ///< cleared by the kernel when the thread no longer uses its stack
  alignas(16) char stack[kHelperStackBytes] = {};
};

struct Copy {
  CopyPiece copy;
  void* context;
  char* to;
  const char* from;
  std::size_t bytes;
  std::size_t piece_bytes;
};

constinit Helper g_helpers[kMostHelpers] = {};
constinit std::atomic<bool> g_busy{false};
/// The current copy. A thread that has claimed a piece may read it until that piece is done.
constinit Copy g_copy{};
constinit std::atomic<std::size_t> g_done{0};

/// The number of the current copy (32 bits), its number of pieces and of claimed pieces (16 bits
/// each). One word, so that a late thread cannot claim a piece of the next copy with the state of
/// the last one.
constinit std::atomic<std::uint64_t> g_pieces{0};

constexpr std::uint64_t count_of(std::uint64_t pieces) { return pieces >> 16 & 0xffff; }
constexpr std::uint64_t taken_of(std::uint64_t pieces) { return pieces & 0xffff; }

/// Claims a piece and copies it; false if none is left.
bool copy_one() {
  std::uint64_t pieces = g_pieces.load(std::memory_order_acquire);
  do {
    if (taken_of(pieces) == count_of(pieces)) return false;
  } while (!g_pieces.compare_exchange_weak(pieces, pieces + 1, std::memory_order_acq_rel,
                                           std::memory_order_acquire));
  const std::size_t offset = taken_of(pieces) * g_copy.piece_bytes;
  g_copy.copy(g_copy.context, g_copy.to + offset, g_copy.from + offset,
              std::min(g_copy.piece_bytes, g_copy.bytes - offset));
  g_done.fetch_add(1, std::memory_order_release);
  return true;
}

/// Waits briefly: spins in the first rounds, yields in later ones. `round` counts from 0.
void wait_a_little(unsigned round) {
  if (round < 1000) {
    __builtin_ia32_pause();
  } else {
    ::sched_yield();
  }
}

int help(void*) {
  ::prctl(PR_SET_NAME, "gcr-copy");
  auto last = Clock::now();
  unsigned round = 0;
  do {
    if (copy_one()) {
      last = Clock::now();
      round = 0;
    } else {
      wait_a_little(round++);
    }
  } while (Clock::now() - last < kHelperPatience);
  return 0;
}

void start(Helper& helper) {
  constexpr int kThread = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
                          CLONE_SYSVSEM | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
  auto* const tid = reinterpret_cast<pid_t*>(&helper.tid);
  ::clone(&help, helper.stack + kHelperStackBytes, kThread, nullptr, tid, nullptr, tid);
}

void start_helpers(std::size_t pieces) {
  cpu_set_t set;
  const int processors = ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  const std::size_t wanted =
      std::min({kMostHelpers, static_cast<std::size_t>(processors) - 1, pieces - 1});
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // helpers inherit it and receive no signals
  for (Helper& helper : std::span(g_helpers).first(wanted)) {
    if (helper.tid.load(std::memory_order_acquire) == 0) start(helper);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

void copy_together(CopyPiece copy, void* context, void* to, const void* from, std::size_t bytes) {
  if (bytes <= kPieceBytes || g_busy.exchange(true, std::memory_order_acquire)) {
    copy(context, static_cast<char*>(to), static_cast<const char*>(from), bytes);
    return;
  }
  const std::size_t piece_bytes = (bytes / kMostPieces / kPieceBytes + 1) * kPieceBytes;
  const std::size_t pieces = (bytes + piece_bytes - 1) / piece_bytes;
  g_copy = {copy,  context,    static_cast<char*>(to), static_cast<const char*>(from),
            bytes, piece_bytes};
  g_done.store(0, std::memory_order_relaxed);
  const std::uint64_t number = (g_pieces.load(std::memory_order_relaxed) >> 32) + 1;
  g_pieces.store(number << 32 | pieces << 16, std::memory_order_release);
  start_helpers(pieces);
  while (copy_one()) {
  }
  for (unsigned round = 0; g_done.load(std::memory_order_acquire) != pieces; ++round) {
    wait_a_little(round);
  }
  g_busy.store(false, std::memory_order_release);
}

}  // namespace gcr::preload
