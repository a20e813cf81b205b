// How the gate closes: a thread that enters stores its depth in its own slot and then reads
// g_attention; the closing thread sets a bit of g_attention and then reads all slots. One of the
// two always sees the other: either the entering thread waits, or the closing thread waits for it.
// The order of store and load is enforced by membarrier(2) in the closing thread or, if that does
// not work (kFenced), by a fence in each entering thread. A step hands out one pass (g_passes) that
// a waiting thread claims after it has stored its depth, so the closing thread sees it inside.
#include "preload/gate.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <new>

namespace gcr::preload {

constinit std::atomic<std::uint32_t> gate_internal::g_attention{0};
constinit thread_local GateSlot* gate_internal::t_slot __attribute__((tls_model("initial-exec"))) =
    nullptr;
constinit thread_local bool gate_internal::t_exempt __attribute__((tls_model("initial-exec"))) =
    false;

namespace {

using gate_internal::g_attention;
using gate_internal::t_slot;

constexpr std::uint32_t kClosed = 1;  ///< callers wait
constexpr std::uint32_t kFenced = 2;  ///< no membarrier: callers execute a fence themselves
constexpr std::uint32_t kAlone = 4;   ///< callers wait for a thread with exclusive access
constexpr std::uint32_t kStep = 8;    ///< added at each step, so that FUTEX_WAIT never misses one
constexpr std::uint32_t kShut = kClosed | kAlone;

constinit std::atomic<std::uint32_t> g_held{0};
constinit std::atomic<std::uint32_t> g_passes{0};  ///< number of held threads that may pass

constexpr std::size_t kStaticSlots = 64;
GateSlot g_static_slots[kStaticSlots];
constinit std::atomic<std::size_t> g_static_used{0};

/// All slots that were ever in use, newest first. The list only grows.
constinit std::atomic<GateSlot*> g_slots{nullptr};

/// The slot of exempt threads, and of threads for which no slot could be allocated. close() does
/// not wait for it.
GateSlot g_uncounted;

pthread_once_t g_key_once = PTHREAD_ONCE_INIT;
pthread_key_t g_key;
bool g_have_key = false;

/// Releases the slot of an ending thread for reuse. A driver call from a later destructor of the
/// same thread claims another slot.
void release_slot(void* value) {
  auto* slot = static_cast<GateSlot*>(value);
  t_slot = nullptr;
  slot->depth.store(0, std::memory_order_relaxed);
  slot->taken.store(0, std::memory_order_release);
}

void make_key() { g_have_key = pthread_key_create(&g_key, release_slot) == 0; }

GateSlot* reuse_slot() {
  for (GateSlot* slot = g_slots.load(std::memory_order_acquire); slot; slot = slot->next) {
    std::uint32_t expected = 0;
    if (slot->taken.load(std::memory_order_relaxed) == 0 &&
        slot->taken.compare_exchange_strong(expected, 1, std::memory_order_acquire)) {
      return slot;
    }
  }
  return nullptr;
}

GateSlot* new_slot() {
  const std::size_t index = g_static_used.fetch_add(1, std::memory_order_relaxed);
  GateSlot* slot = nullptr;
  if (index < kStaticSlots) {
    slot = &g_static_slots[index];
  } else {
    void* page = ::mmap(nullptr, sizeof(GateSlot), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return nullptr;
    slot = new (page) GateSlot;
  }
  slot->taken.store(1, std::memory_order_relaxed);
  GateSlot* head = g_slots.load(std::memory_order_relaxed);
  do {
    slot->next = head;
  } while (!g_slots.compare_exchange_weak(head, slot, std::memory_order_release,
                                          std::memory_order_relaxed));
  return slot;
}

bool claim_pass() {
  std::uint32_t passes = g_passes.load(std::memory_order_acquire);
  while (passes != 0) {
    if (g_passes.compare_exchange_weak(passes, passes - 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

/// Waits until the gate opens. True: the thread got a pass for the closed gate, and its `slot`
/// counts it as inside.
bool wait_while_closed(GateSlot* slot) {
  const int saved_errno = errno;
  bool passes = false;
  g_held.fetch_add(1);
  for (;;) {
    const std::uint32_t seen = g_attention.load(std::memory_order_acquire);
    if ((seen & kShut) == 0) break;
    slot->depth.store(1, std::memory_order_relaxed);  // before the pass is consumed
    // Either the thread that takes exclusive access sees this depth, or this thread sees kAlone.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    passes = (g_attention.load(std::memory_order_relaxed) & kAlone) == 0 && claim_pass();
    if (passes) break;
    slot->depth.store(0, std::memory_order_release);
    ::syscall(SYS_futex, &g_attention, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  }
  g_held.fetch_sub(1);
  errno = saved_errno;
  return passes;
}

}  // namespace

GateSlot* gate_internal::claim_slot() {
  const int saved_errno = errno;
  pthread_once(&g_key_once, make_key);
  GateSlot* slot = reuse_slot();
  if (slot == nullptr) slot = new_slot();
  if (slot == nullptr) slot = &g_uncounted;
  t_slot = slot;
  if (slot != &g_uncounted && g_have_key) pthread_setspecific(g_key, slot);
  errno = saved_errno;
  return slot;
}

void gate_internal::enter_slowly(GateSlot* slot) {
  if (slot == &g_uncounted) return;
  for (;;) {
    // Either the closing thread sees this depth, or this thread sees the gate closed.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if ((g_attention.load(std::memory_order_relaxed) & kShut) == 0) return;
    slot->depth.store(0, std::memory_order_release);
    if (wait_while_closed(slot)) return;
    slot->depth.store(1, std::memory_order_relaxed);
  }
}

namespace gate {
namespace {

using Clock = std::chrono::steady_clock;

/// How long a woken thread may take to use its pass.
constexpr std::chrono::milliseconds kStepPatience{20};

int membarrier(int command) { return static_cast<int>(::syscall(SYS_membarrier, command, 0, 0)); }

void sleep_for(std::chrono::nanoseconds duration) {
  const timespec time{0, static_cast<long>(duration.count())};
  ::nanosleep(&time, nullptr);
}

/// Makes the depths of all threads inside visible to this thread, and the closed gate visible to
/// all later callers. False the first time that membarrier fails: from then on callers execute a
/// fence themselves, but callers that are just entering may not do so yet.
bool make_visible() {
  const bool fenced = (g_attention.load(std::memory_order_relaxed) & kFenced) != 0;
  if (!fenced && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0) {
    g_attention.fetch_or(kFenced, std::memory_order_seq_cst);
    return false;
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return true;
}

std::uint32_t inside_besides(const GateSlot* own) {
  std::uint32_t threads = 0;
  for (GateSlot* slot = g_slots.load(std::memory_order_acquire); slot; slot = slot->next) {
    if (slot != own && slot->depth.load(std::memory_order_acquire) != 0) ++threads;
  }
  return threads;
}

/// Sleeps for `*pause` and doubles it, up to a limit.
void back_off(std::chrono::nanoseconds* pause) {
  sleep_for(*pause);
  if (*pause < std::chrono::microseconds(500)) *pause *= 2;
}

void reopen(std::uint32_t bits) {
  g_attention.fetch_and(~bits, std::memory_order_release);
  ::syscall(SYS_futex, &g_attention, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

/// Prevents other threads from entering. While the gate is closed or another thread has exclusive
/// access, the thread of `own` leaves the gate and waits.
void exclude_others(GateSlot* own) {
  for (;;) {
    std::uint32_t seen = g_attention.load(std::memory_order_acquire);
    if ((seen & kShut) == 0 &&
        g_attention.compare_exchange_strong(seen, seen | kAlone, std::memory_order_seq_cst)) {
      return;
    }
    const std::uint32_t depth = own->depth.load(std::memory_order_relaxed);
    gate_internal::enter_slowly(own);
    own->depth.store(depth, std::memory_order_relaxed);
  }
}

}  // namespace

void prepare() { membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED); }

bool close(std::chrono::nanoseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  prepare();  // again: a restore may have dropped the registration
  g_attention.fetch_or(kClosed, std::memory_order_seq_cst);
  if (!make_visible()) return false;
  std::chrono::nanoseconds pause = std::chrono::microseconds(10);
  while (in_flight() != 0) {
    if (Clock::now() >= deadline) return false;
    back_off(&pause);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return true;
}

bool step() {
  if (held() == 0) return false;
  g_passes.store(1, std::memory_order_release);
  g_attention.fetch_add(kStep, std::memory_order_release);
  ::syscall(SYS_futex, &g_attention, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  // Withdraw the pass of a thread that does not run now: it must not enter unexpectedly later.
  const auto deadline = Clock::now() + kStepPatience;
  while (g_passes.load(std::memory_order_acquire) != 0) {
    if (Clock::now() < deadline) {
      sleep_for(std::chrono::microseconds(10));
    } else if (g_passes.exchange(0) != 0) {
      return false;
    }
  }
  return true;
}

void open() { reopen(kClosed); }

Alone::Alone(std::chrono::nanoseconds timeout) : alone_(t_slot != &g_uncounted) {
  if (!alone_) return;
  prepare();
  exclude_others(t_slot);
  alone_ = make_visible();
  auto deadline = Clock::now() + timeout;
  std::chrono::nanoseconds pause = std::chrono::microseconds(10);
  while (alone_ && inside_besides(t_slot) != 0) {
    if (is_closed()) {  // the closing thread waits for this one to leave
      reopen(kAlone);
      exclude_others(t_slot);
      alone_ = make_visible();
      deadline = Clock::now() + timeout;
    }
    alone_ = alone_ && Clock::now() < deadline;
    back_off(&pause);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!alone_) reopen(kAlone);
}

Alone::~Alone() {
  if (alone_) reopen(kAlone);
}

std::uint32_t held() { return g_held.load(std::memory_order_acquire); }

bool is_closed() { return (g_attention.load(std::memory_order_acquire) & kClosed) != 0; }

std::uint32_t in_flight() { return inside_besides(nullptr); }

void exempt_this_thread() {
  t_slot = &g_uncounted;
  gate_internal::t_exempt = true;
}

void reset_after_fork() {
  GateSlot* const own = t_slot;
  for (GateSlot* slot = g_slots.load(std::memory_order_relaxed); slot; slot = slot->next) {
    if (slot == own) continue;
    slot->depth.store(0, std::memory_order_relaxed);
    slot->taken.store(0, std::memory_order_relaxed);
  }
  g_attention.store(0, std::memory_order_relaxed);
  g_held.store(0, std::memory_order_relaxed);
  g_passes.store(0, std::memory_order_relaxed);
}

}  // namespace gate
}  // namespace gcr::preload
