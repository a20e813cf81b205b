#include "preload/cuda/contexts.h"

#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "preload/cuda/backing.h"
#include "preload/cuda/driver_calls.h"
#include "preload/gate.h"
#include "preload/quiet_thread.h"

namespace gcr::preload {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxSynchronized = 256;

/// What the waiting thread works on. One at a time: a thread that has not ended keeps it.
struct Waiting {
  CUcontext contexts[kMaxSynchronized];
  std::size_t count = 0;
  std::atomic<CUresult> result{CUDA_SUCCESS};
  std::atomic<std::uint32_t> running{0};  ///< futex
  pthread_t thread{};
  bool to_join = false;
};
Waiting g_waiting;

bool is_gone(CUresult result) {
  return result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED ||
         result == CUDA_ERROR_DEINITIALIZED;
}

void* wait_in_thread(void*) {
  gate::exempt_this_thread();
  CUresult worst = CUDA_SUCCESS;
  for (std::size_t i = 0; i < g_waiting.count; ++i) {
    const CUresult result = synchronize(g_waiting.contexts[i]);
    if (result != CUDA_SUCCESS && !is_gone(result)) worst = result;
  }
  g_waiting.result.store(worst);
  g_waiting.running.store(0);
  ::syscall(SYS_futex, &g_waiting.running, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  return nullptr;
}

void copy_contexts() {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  std::erase_if(s.contexts, [](const KnownContext& known) {
    unsigned int flags = 0;
    int active = 1;
    return known.primary &&
           real::cuDevicePrimaryCtxGetState(known.device, &flags, &active) == CUDA_SUCCESS &&
           active == 0;
  });
  g_waiting.count = std::min(s.contexts.size(), kMaxSynchronized);
  for (std::size_t i = 0; i < g_waiting.count; ++i) {
    g_waiting.contexts[i] = s.contexts[i].context;
  }
}

bool start_waiting_thread() {
  g_waiting.running.store(1);
  g_waiting.to_join = start_quiet_thread("gcr-idle", wait_in_thread, &g_waiting.thread);
  if (!g_waiting.to_join) g_waiting.running.store(0);
  return g_waiting.to_join;
}

bool waiting_thread_ends(Clock::time_point deadline) {
  while (g_waiting.running.load() != 0) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    const timespec time{static_cast<time_t>(left.count() / 1'000'000'000),
                        static_cast<long>(left.count() % 1'000'000'000)};
    ::syscall(SYS_futex, &g_waiting.running, FUTEX_WAIT_PRIVATE, 1, &time, nullptr, 0);
  }
  return true;
}

/// Returns when the thread has really ended: a dump must not find it half ended.
void join_waiting_thread() {
  if (!g_waiting.to_join) return;
  pthread_join(g_waiting.thread, nullptr);
  g_waiting.to_join = false;
}

}  // namespace

CurrentContext::CurrentContext(CUcontext context) : result_(real::cuCtxPushCurrent_v2(context)) {}

CurrentContext::~CurrentContext() {
  CUcontext popped = nullptr;
  if (result_ == CUDA_SUCCESS) real::cuCtxPopCurrent_v2(&popped);
}

void note_context(ProcessState& s, CUcontext context, int device, bool primary) {
  for (KnownContext& known : s.contexts) {
    if (known.context != context) continue;
    known.primary = known.primary || primary;
    return;
  }
  s.contexts.push_back({context, device, primary});
}

void forget_context(CUcontext context) {
  ProcessState& s = state();
  std::vector<Mapping> dead;
  {
    const std::lock_guard lock(s.mutex);
    std::erase_if(s.contexts, [&](const KnownContext& k) { return k.context == context; });
    std::erase_if(s.peers, [&](const PeerAccess& peer) {
      return peer.owner == context || peer.accessor == context;
    });
    std::vector<CUdeviceptr> addresses;
    for (const auto& [address, mapping] : s.inventory.mappings()) {
      if (mapping.context == context) addresses.push_back(address);
    }
    s.arenas.remove_all_of(context);
    forget_streams_of(s, context);
    for (const CUdeviceptr address : addresses) {
      dead.push_back(s.inventory.take_mapping(address));
      s.inventory.remove_plains(dead.back());
    }
    for (auto deferred = s.deferred_frees.begin(); deferred != s.deferred_frees.end();) {
      if (deferred->freed.context != context) {
        ++deferred;
        continue;
      }
      if (deferred->freed.mapping.physical != nullptr) {
        dead.push_back(std::move(deferred->freed.mapping));
      }
      deferred = s.deferred_frees.erase(deferred);
    }
  }
  for (const Mapping& mapping : dead) take_apart(mapping);
}

Idle wait_for_contexts(std::chrono::nanoseconds timeout, CUresult* result) {
  const auto deadline = Clock::now() + timeout;
  *result = CUDA_SUCCESS;
  if (!waiting_thread_ends(deadline)) return Idle::kTimeout;
  join_waiting_thread();
  copy_contexts();
  if (g_waiting.count == 0) return Idle::kYes;
  if (!start_waiting_thread()) {
    *result = CUDA_ERROR_OPERATING_SYSTEM;
    return Idle::kDriver;
  }
  if (!waiting_thread_ends(deadline)) return Idle::kTimeout;
  join_waiting_thread();
  *result = g_waiting.result.load();
  return *result == CUDA_SUCCESS ? Idle::kYes : Idle::kDriver;
}

}  // namespace gcr::preload
