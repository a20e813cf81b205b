// The gate: calls that submit work or change mappings enter it; the door can close it, and a thread
// inside can take exclusive access.
//
// Entering an open gate costs one store into a slot that belongs to the calling thread and one
// relaxed load. The thread that closes it makes those stores visible with membarrier(2), so that
// the open path needs no fence. Callers that find the gate closed sleep on a futex. Everything here
// is plain memory and futexes, so a checkpoint of the process and its restore change nothing.
//
// Nothing here calls malloc, takes a lock or calls the driver.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace gcr::preload {

/// The nesting depth of one thread inside the gate. Slots are never freed, only reused by later
/// threads.
struct alignas(64) GateSlot {
  std::atomic<std::uint32_t> depth{0};
  std::atomic<std::uint32_t> taken{0};
  GateSlot* next = nullptr;
};

namespace gate_internal {
/// 0 while the gate is open and membarrier works; otherwise entering takes the slow path.
extern std::atomic<std::uint32_t> g_attention;
extern constinit thread_local GateSlot* t_slot __attribute__((tls_model("initial-exec")));
extern constinit thread_local bool t_exempt __attribute__((tls_model("initial-exec")));
GateSlot* claim_slot();
void enter_slowly(GateSlot* slot);
}  // namespace gate_internal

/// Holds the calling thread inside the gate while it lives. Any thread; scopes may be nested: only
/// the outermost scope of a thread can wait.
class GateScope {
 public:
  GateScope() : slot_(gate_internal::t_slot) {
    if (slot_ == nullptr) [[unlikely]]
      slot_ = gate_internal::claim_slot();
    const std::uint32_t depth = slot_->depth.load(std::memory_order_relaxed);
    slot_->depth.store(depth + 1, std::memory_order_relaxed);
    // A compiler fence is enough: gate::close pairs it with membarrier.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    // In this order, the usual case takes no jump.
    if (gate_internal::g_attention.load(std::memory_order_relaxed) != 0 && depth == 0)
        [[unlikely]] {
      gate_internal::enter_slowly(slot_);
    }
  }
  ~GateScope() {
    const std::uint32_t depth = slot_->depth.load(std::memory_order_relaxed);
    slot_->depth.store(depth - 1, std::memory_order_release);
  }
  GateScope(const GateScope&) = delete;
  GateScope& operator=(const GateScope&) = delete;

 private:
  GateSlot* slot_;
};

namespace gate {

/// Prepares membarrier for this process. Call before the first close; cheap, may be repeated.
void prepare();

/// Closes the gate, if it is open, and waits until no other thread is inside. False after
/// `timeout`, or at once the very first time in a process without membarrier: in both cases the
/// gate is closed. One thread at a time may close, step and open.
bool close(std::chrono::nanoseconds timeout);

/// Lets one thread pass that waits at the closed gate. False if none waits, or it does not run in
/// time.
bool step();

/// Opens the gate and wakes all threads that wait at it. Opening an open gate does nothing.
void open();

bool is_closed();

/// Number of threads that are inside now.
std::uint32_t in_flight();

/// Number of threads that wait at the closed gate.
std::uint32_t held();

/// Exempts the calling thread: it passes a closed gate, and close() does not wait for it.
void exempt_this_thread();
inline bool is_this_thread_exempt() { return gate_internal::t_exempt; }

/// Gives the calling thread, which must be inside the gate, exclusive access while it lives: no
/// other thread is inside or enters. The constructor first leaves the gate and waits while the gate
/// is closed or another thread has exclusive access; a whole migration may happen in between. It
/// then waits up to `timeout` for threads inside; if that is not enough, the object converts to
/// false.
class Alone {
 public:
  explicit Alone(std::chrono::nanoseconds timeout);
  ~Alone();
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  explicit operator bool() const { return alone_; }

 private:
  bool alone_;
};

/// Resets the gate in the child of a fork: it is open, and only the calling thread can be inside.
void reset_after_fork();

}  // namespace gate
}  // namespace gcr::preload
