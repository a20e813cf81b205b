// The contexts of the process: their list, waiting for all of them, and releasing what a destroyed
// one had.
#pragma once

#include <chrono>

#include "preload/memory/runtime.h"
#include "preload/runtime.h"

namespace gcr::preload {

/// Makes a context current while it lives; `result` tells whether that succeeded.
class CurrentContext {
 public:
  CurrentContext(Runtime& r, Context* context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  Result result() const { return result_; }

 private:
  Runtime& r_;
  Context* previous_ = nullptr;
  const Result result_;
};

/// Records a context. The caller holds the mutex.
void note_context(Runtime& r, Context* context, int device, bool primary = false);

/// Removes a destroyed context, and releases what was allocated in it. Takes the mutex.
void forget_context(Runtime& r, Context* context);

/// Records a context that was created. Takes the mutex.
void note_created(Runtime& r, Context* context, int device, bool primary);

/// Records that the primary context of a device was reset (`reset`) or released. A release destroys
/// it only if it was the last. Takes the mutex.
void note_primary_ended(Runtime& r, int device, bool reset);

/// Record and remove a green context. Both take the mutex.
void note_green(Runtime& r, Context* context, Context* primary);
void forget_green(Runtime& r, Context* context);

/// The context that owns allocations made in `context`: for a green context its primary context.
/// Takes the mutex.
Context* owner_of(Runtime& r, Context* context);

/// Enable and disable access of the current context to allocations of `owner`. Both take the mutex.
void enable_peer(Runtime& r, Context* owner);
void disable_peer(Runtime& r, Context* owner);

/// Gives all devices that the process uses access to all plain allocations, after a refused copy.
/// That is more than the driver grants: kernels that would fail can then read and write. False if
/// all devices had access already, or there is only one device. Takes the mutex.
bool open_to_copies(Runtime& r);

/// Waits until every known context has finished all submitted work, and performs the frees that
/// were deferred until then; see runtime::wait_until_idle. A separate thread waits, because the
/// driver's call has no timeout; after a timeout that thread ends when the work does, and the next
/// call waits for it first. Takes the mutex.
runtime::Ending wait_until_idle(Runtime& r, std::chrono::nanoseconds timeout,
                                door::Obstacle* obstacle);

}  // namespace gcr::preload
