// Waiting for idle contexts: a separate thread synchronises one context after the other and wakes
// the caller by a futex, for which the caller waits with a timeout.
#include "preload/memory/contexts.h"

#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "preload/gate.h"
#include "preload/memory/backing.h"
#include "preload/memory/capture.h"
#include "preload/memory/pools.h"
#include "preload/quiet_thread.h"

namespace gcr::preload {
namespace {

using Clock = std::chrono::steady_clock;

bool is_gone(Result result) {
  return result == Result::kInvalidContext || result == Result::kContextIsDestroyed ||
         result == Result::kDeinitialized;
}

void* wait_in_thread(void* runtime) {
  Runtime& r = *static_cast<Runtime*>(runtime);
  Waiting& waiting = r.waiting;
  gate::exempt_this_thread();
  Result worst = Result::kSuccess;
  for (std::size_t i = 0; i < waiting.count; ++i) {
    const Result result = synchronize(r, waiting.contexts[i]);
    if (result != Result::kSuccess && !is_gone(result)) worst = result;
  }
  waiting.result.store(worst);
  waiting.running.store(0);
  ::syscall(SYS_futex, &waiting.running, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  return nullptr;
}

void copy_contexts(Runtime& r) {
  const std::lock_guard lock(r.mutex);
  std::erase_if(r.contexts, [&](const KnownContext& known) {
    return known.primary && !r.driver.primary_is_active(known.device);
  });
  r.waiting.count = std::min(r.contexts.size(), Waiting::kMostContexts);
  for (std::size_t i = 0; i < r.waiting.count; ++i) {
    r.waiting.contexts[i] = r.contexts[i].context;
  }
}

bool start_waiting_thread(Runtime& r) {
  Waiting& waiting = r.waiting;
  waiting.running.store(1);
  waiting.to_join = start_quiet_thread("gcr-idle", wait_in_thread, &r, &waiting.thread);
  if (!waiting.to_join) waiting.running.store(0);
  return waiting.to_join;
}

bool waiting_thread_ends(Waiting& waiting, Clock::time_point deadline) {
  while (waiting.running.load() != 0) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    const timespec time{static_cast<time_t>(left.count() / 1'000'000'000),
                        static_cast<long>(left.count() % 1'000'000'000)};
    ::syscall(SYS_futex, &waiting.running, FUTEX_WAIT_PRIVATE, 1, &time, nullptr, 0);
  }
  return true;
}

/// Returns when the thread has ended completely, so that a dump does not see an exiting thread.
void join_waiting_thread(Waiting& waiting) {
  if (!waiting.to_join) return;
  pthread_join(waiting.thread, nullptr);
  waiting.to_join = false;
}

/// The known primary context of a device; null if there is none.
Context* primary_of(Runtime& r, int device) {
  const std::lock_guard lock(r.mutex);
  for (const KnownContext& known : r.contexts) {
    if (known.primary && known.device == device) return known.context;
  }
  return nullptr;
}

void refresh_access(Runtime& r, Context* owner) {
  for (auto& [address, mapping] : r.inventory.mappings()) {
    if (mapping.context == owner) apply_access(r, mapping);
  }
}

/// Waits for all contexts. Call it while the gate is closed and empty, or from the thread with
/// exclusive access, and only while no stream is captured.
runtime::Ending wait_for_contexts(Runtime& r, std::chrono::nanoseconds timeout) {
  Waiting& waiting = r.waiting;
  const auto deadline = Clock::now() + timeout;
  if (!waiting_thread_ends(waiting, deadline)) return {door::Outcome::kTimeout};
  join_waiting_thread(waiting);
  copy_contexts(r);
  if (waiting.count == 0) return {};
  if (!start_waiting_thread(r)) return {door::Outcome::kDriver, number(Result::kOperatingSystem)};
  if (!waiting_thread_ends(waiting, deadline)) return {door::Outcome::kTimeout};
  join_waiting_thread(waiting);
  const Result result = waiting.result.load();
  if (result != Result::kSuccess) return {door::Outcome::kDriver, number(result)};
  return {};
}

}  // namespace

CurrentContext::CurrentContext(Runtime& r, Context* context)
    : r_(r), result_(r.driver.enter(context, &previous_)) {}

CurrentContext::~CurrentContext() {
  if (result_ == Result::kSuccess) r_.driver.leave(previous_);
}

void note_context(Runtime& r, Context* context, int device, bool primary) {
  for (KnownContext& known : r.contexts) {
    if (known.context != context) continue;
    known.primary = known.primary || primary;
    return;
  }
  r.contexts.push_back({context, device, primary});
}

void forget_context(Runtime& r, Context* context) {
  std::vector<Mapping> dead;
  {
    const std::lock_guard lock(r.mutex);
    std::erase_if(r.contexts, [&](const KnownContext& k) { return k.context == context; });
    std::erase_if(r.peers, [&](const PeerAccess& peer) {
      return peer.owner == context || peer.accessor == context;
    });
    std::vector<Address> addresses;
    for (const auto& [address, mapping] : r.inventory.mappings()) {
      if (mapping.context == context) addresses.push_back(address);
    }
    r.arenas.remove_all_of(context);
    forget_streams_of(r, context);
    for (const Address address : addresses) {
      dead.push_back(r.inventory.remove_mapping(address));
      r.inventory.remove_plains(dead.back());
    }
    for (auto deferred = r.deferred_frees.begin(); deferred != r.deferred_frees.end();) {
      if (deferred->freed.context != context) {
        ++deferred;
        continue;
      }
      if (deferred->freed.mapping.physical != nullptr) {
        dead.push_back(std::move(deferred->freed.mapping));
      }
      deferred = r.deferred_frees.erase(deferred);
    }
  }
  for (const Mapping& mapping : dead) unmap_and_release(r, mapping);
}

void note_created(Runtime& r, Context* context, int device, bool primary) {
  if (device < 0 || device >= kMaxDevices) return;
  const std::lock_guard lock(r.mutex);
  note_context(r, context, device, primary);
}

void note_primary_ended(Runtime& r, int device, bool reset) {
  if (!reset && r.driver.primary_is_active(device)) return;
  if (Context* const context = primary_of(r, device)) forget_context(r, context);
}

void note_green(Runtime& r, Context* context, Context* primary) {
  const std::lock_guard lock(r.mutex);
  const bool known = std::ranges::any_of(
      r.green_contexts, [&](const GreenContext& green) { return green.context == context; });
  if (!known) r.green_contexts.push_back({context, primary});
  r.any_green_context.store(true, std::memory_order_release);
}

void forget_green(Runtime& r, Context* context) {
  const std::lock_guard lock(r.mutex);
  std::erase_if(r.green_contexts,
                [&](const GreenContext& green) { return green.context == context; });
  forget_streams_of(r, context);
}

Context* owner_of(Runtime& r, Context* context) {
  if (!r.any_green_context.load(std::memory_order_acquire)) return context;
  const std::lock_guard lock(r.mutex);
  for (const GreenContext& green : r.green_contexts) {
    if (green.context == context) return green.primary;
  }
  return context;
}

void enable_peer(Runtime& r, Context* owner) {
  PeerAccess peer{nullptr, 0, owner};
  if (!current_context(r, &peer.accessor, &peer.accessor_device)) return;
  const std::lock_guard lock(r.mutex);
  r.peers.push_back(peer);
  refresh_access(r, owner);
}

void disable_peer(Runtime& r, Context* owner) {
  Context* accessor = nullptr;
  int device = 0;
  if (!current_context(r, &accessor, &device)) return;
  const std::lock_guard lock(r.mutex);
  std::erase_if(r.peers, [&](const PeerAccess& peer) {
    return peer.accessor == accessor && peer.owner == owner;
  });
  refresh_access(r, owner);
}

bool open_to_copies(Runtime& r) {
  Context* context = nullptr;
  int device = 0;
  if (!current_context(r, &context, &device)) return false;
  const std::lock_guard lock(r.mutex);
  note_context(r, context, device);
  std::uint64_t devices = 0;
  for (const KnownContext& known : r.contexts) devices |= std::uint64_t{1} << known.device;
  if (devices == r.copiers || (devices & (devices - 1)) == 0) return false;
  r.copiers = devices;
  for (auto& [address, mapping] : r.inventory.mappings()) {
    if (mapping.holds_plains() && mapping.pool == nullptr) apply_access(r, mapping);
  }
  return true;
}

runtime::Ending wait_until_idle(Runtime& r, std::chrono::nanoseconds timeout,
                                door::Obstacle* obstacle) {
  bool capturing = false;
  {
    const std::lock_guard lock(r.mutex);
    capturing = any_capture(r);
  }
  *obstacle = capturing ? door::Obstacle::kCapture : door::Obstacle::kGpuWork;
  if (capturing) return {door::Outcome::kTimeout};
  const runtime::Ending ending = wait_for_contexts(r, timeout);
  if (ending.outcome != door::Outcome::kOk) return ending;
  {
    const std::lock_guard lock(r.mutex);
    note_all_passed(r);
  }
  flush_deferred_frees(r);
  *obstacle = door::Obstacle::kNone;
  return {};
}

}  // namespace gcr::preload
