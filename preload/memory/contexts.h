// The contexts of the process: a list of them, waiting for all of them, and what dies with one.
#pragma once

#include <chrono>

#include "preload/memory/runtime.h"
#include "preload/runtime.h"

namespace gcr::preload {

/// Makes a context current while it lives, unless `result` says that it could not.
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

/// Remembers a context. Holds the mutex already.
void note_context(Runtime& r, Context* context, int device, bool primary = false);

/// Forgets a context that was destroyed, and releases what was allocated in it. Takes the mutex.
void forget_context(Runtime& r, Context* context);

/// After a context was created. Takes the mutex.
void note_created(Runtime& r, Context* context, int device, bool primary);

/// After the primary context of a device was reset, or, unless `reset`, released: a release ends it
/// only if it was the last. Takes the mutex.
void note_primary_ended(Runtime& r, int device, bool reset);

/// A green context was made current, or can be; it was destroyed. Both take the mutex.
void note_green(Runtime& r, Context* context, Context* primary);
void forget_green(Runtime& r, Context* context);

/// The context that what is allocated in `context` belongs to. Takes the mutex.
Context* owner_of(Runtime& r, Context* context);

/// The current context may reach what is allocated in `owner` from now on, or not any more. Takes
/// the mutex.
void enable_peer(Runtime& r, Context* owner);
void disable_peer(Runtime& r, Context* owner);

/// A copy was refused. From now on all devices that the process uses have access to all plain
/// allocations: more than the driver gives, whose kernels fail where these can read and write.
/// False if they had it, or there is one device alone. Takes the mutex.
bool open_to_copies(Runtime& r);

/// Waits until every known context has done all submitted work, and frees what was only waiting for
/// that; see runtime::wait_until_idle. A separate thread waits, because the driver's call has no
/// timeout; after a timeout that thread ends when the work does, and the next call waits for it
/// first. Takes the mutex.
runtime::Ending wait_until_idle(Runtime& r, std::chrono::nanoseconds timeout,
                                door::Obstacle* obstacle);

}  // namespace gcr::preload
