// The contexts of the process: a list of them, waiting for all of them, and what dies with one.
#pragma once

#include <chrono>

#include "preload/cuda/process_state.h"

namespace gcr::preload {

/// Makes a context current while it lives, unless `result` says that it could not.
class CurrentContext {
 public:
  explicit CurrentContext(CUcontext context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  CUresult result() const { return result_; }

 private:
  const CUresult result_;
};

/// Remembers a context. Holds the mutex already.
void note_context(ProcessState& state, CUcontext context, int device, bool primary = false);

/// Forgets a context that was destroyed, and releases what was allocated in it. Takes the mutex.
void forget_context(CUcontext context);

/// The result of waiting for the contexts.
enum class Idle { kYes, kTimeout, kDriver };

/// Waits until every known context has done all submitted work. A separate thread waits, because
/// the driver's call has no timeout; after kTimeout that thread ends when the work does, and the
/// next call waits for it first. Called while the gate is closed and empty, or by the thread that
/// is alone in it, and only while no stream is captured. `result` is the driver's code for kDriver.
Idle wait_for_contexts(std::chrono::nanoseconds timeout, CUresult* result);

}  // namespace gcr::preload
