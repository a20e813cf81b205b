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
namespace gate_internal {

constinit std::atomic<std::uint32_t> g_attention{0};
constinit thread_local GateSlot* t_slot __attribute__((tls_model("initial-exec"))) = nullptr;
constinit thread_local bool t_exempt __attribute__((tls_model("initial-exec"))) = false;

namespace {

constexpr std::uint32_t kClosed = 1;  ///< callers wait
constexpr std::uint32_t kFenced = 2;  ///< no membarrier: callers execute a fence themselves
constexpr std::uint32_t kAlone = 4;   ///< callers wait, for a thread that wants to be alone inside
constexpr std::uint32_t kStep = 8;    ///< added at each step, so that nobody sleeps through it
constexpr std::uint32_t kShut = kClosed | kAlone;

constinit std::atomic<std::uint32_t> g_held{0};
constinit std::atomic<std::uint32_t> g_passes{0};  ///< how many held threads may pass

constexpr std::size_t kStaticSlots = 64;
GateSlot g_static_slots[kStaticSlots];
constinit std::atomic<std::size_t> g_static_used{0};

/// All slots ever handed out, newest first. Only ever grows.
constinit std::atomic<GateSlot*> g_slots{nullptr};

/// Exempt threads and threads that no slot could be made for count here; never waited for.
GateSlot g_uncounted;

pthread_once_t g_key_once = PTHREAD_ONCE_INIT;
pthread_key_t g_key;
bool g_have_key = false;

/// Hands the slot of an ending thread to later ones. A call from a still later destructor of the
/// same thread takes a slot anew.
void give_slot_back(void* value) {
  auto* slot = static_cast<GateSlot*>(value);
  t_slot = nullptr;
  slot->depth.store(0, std::memory_order_relaxed);
  slot->taken.store(0, std::memory_order_release);
}

void make_key() { g_have_key = pthread_key_create(&g_key, give_slot_back) == 0; }

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

bool take_pass() {
  std::uint32_t passes = g_passes.load(std::memory_order_acquire);
  while (passes != 0) {
    if (g_passes.compare_exchange_weak(passes, passes - 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

/// True: the thread may pass although the gate is closed, and `slot` says that it is inside.
bool wait_while_closed(GateSlot* slot) {
  const int saved_errno = errno;
  bool passes = false;
  g_held.fetch_add(1);
  for (;;) {
    const std::uint32_t seen = g_attention.load(std::memory_order_acquire);
    if ((seen & kShut) == 0) break;
    slot->depth.store(1, std::memory_order_relaxed);  // before the pass is gone
    // Either the thread that wants to be alone sees this depth, or this thread sees that it does.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    passes = (g_attention.load(std::memory_order_relaxed) & kAlone) == 0 && take_pass();
    if (passes) break;
    slot->depth.store(0, std::memory_order_release);
    ::syscall(SYS_futex, &g_attention, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  }
  g_held.fetch_sub(1);
  errno = saved_errno;
  return passes;
}

}  // namespace

GateSlot* take_slot() {
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

void enter_slowly(GateSlot* slot) {
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

}  // namespace gate_internal

namespace gate {
namespace {

using gate_internal::g_attention;
using gate_internal::g_slots;
using gate_internal::g_uncounted;
using gate_internal::kAlone;
using gate_internal::kClosed;
using gate_internal::kFenced;
using gate_internal::kShut;
using gate_internal::kStep;
using gate_internal::t_slot;
using Clock = std::chrono::steady_clock;

/// How long a thread that was woken may take to pass.
constexpr std::chrono::milliseconds kStepPatience{20};

int membarrier(int command) { return static_cast<int>(::syscall(SYS_membarrier, command, 0, 0)); }

void sleep_for(std::chrono::nanoseconds duration) {
  const timespec time{0, static_cast<long>(duration.count())};
  ::nanosleep(&time, nullptr);
}

/// Whether all threads inside are visible now, and all later ones will see the gate closed. False
/// the first time that membarrier fails: from then on callers execute a fence themselves, but those
/// that are just entering may not do so yet.
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

/// Sleeps a little, and each time a little longer.
void doze(std::chrono::nanoseconds* pause) {
  sleep_for(*pause);
  if (*pause < std::chrono::microseconds(500)) *pause *= 2;
}

void reopen(std::uint32_t bits) {
  g_attention.fetch_and(~bits, std::memory_order_release);
  ::syscall(SYS_futex, &g_attention, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

/// From now on nobody enters. Until that can be, the thread of `own` is not inside.
void shut_behind(GateSlot* own) {
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
  prepare();  // again: a restore may have forgotten it
  g_attention.fetch_or(kClosed, std::memory_order_seq_cst);
  if (!make_visible()) return false;
  std::chrono::nanoseconds pause = std::chrono::microseconds(10);
  while (in_flight() != 0) {
    if (Clock::now() >= deadline) return false;
    doze(&pause);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return true;
}

bool step() {
  if (held() == 0) return false;
  gate_internal::g_passes.store(1, std::memory_order_release);
  g_attention.fetch_add(kStep, std::memory_order_release);
  ::syscall(SYS_futex, &g_attention, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  // A thread that cannot run just now must not take its pass later, from behind.
  const auto deadline = Clock::now() + kStepPatience;
  while (gate_internal::g_passes.load(std::memory_order_acquire) != 0) {
    if (Clock::now() < deadline) {
      sleep_for(std::chrono::microseconds(10));
    } else if (gate_internal::g_passes.exchange(0) != 0) {
      return false;
    }
  }
  return true;
}

void open() { reopen(kClosed); }

Alone::Alone(std::chrono::nanoseconds timeout) : alone_(t_slot != &g_uncounted) {
  if (!alone_) return;
  prepare();
  shut_behind(t_slot);
  alone_ = make_visible();
  auto deadline = Clock::now() + timeout;
  std::chrono::nanoseconds pause = std::chrono::microseconds(10);
  while (alone_ && inside_besides(t_slot) != 0) {
    if (is_closed()) {  // who closes it waits for this thread
      reopen(kAlone);
      shut_behind(t_slot);
      alone_ = make_visible();
      deadline = Clock::now() + timeout;
    }
    alone_ = alone_ && Clock::now() < deadline;
    doze(&pause);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!alone_) reopen(kAlone);
}

Alone::~Alone() {
  if (alone_) reopen(kAlone);
}

std::uint32_t held() { return gate_internal::g_held.load(std::memory_order_acquire); }

bool is_closed() { return (g_attention.load(std::memory_order_acquire) & kClosed) != 0; }

std::uint32_t in_flight() { return inside_besides(nullptr); }

void exempt_this_thread() {
  gate_internal::t_slot = &gate_internal::g_uncounted;
  gate_internal::t_exempt = true;
}

void reset_after_fork() {
  GateSlot* const own = gate_internal::t_slot;
  for (GateSlot* slot = g_slots.load(std::memory_order_relaxed); slot; slot = slot->next) {
    if (slot == own) continue;
    slot->depth.store(0, std::memory_order_relaxed);
    slot->taken.store(0, std::memory_order_relaxed);
  }
  g_attention.store(0, std::memory_order_relaxed);
  gate_internal::g_held.store(0, std::memory_order_relaxed);
  gate_internal::g_passes.store(0, std::memory_order_relaxed);
}

}  // namespace gate
}  // namespace gcr::preload
