// The entry point: a process that initialises CUDA gets its door.
#include <atomic>

#include "preload/checkpoint_memory.h"
#include "preload/cuda/driver_calls.h"
#include "preload/cuda/face.h"
#include "preload/cuda/tracked.h"

namespace gcr::preload::tracked {
namespace {

constinit std::atomic<bool> g_calls_are_found{false};

}  // namespace

CUresult cuInit(unsigned int flags) {
  const CUresult result = real::cuInit(flags);
  if (result != CUDA_SUCCESS) return result;
  // Not behind a static's guard: no lock is held while one waits for the loader's.
  if (!g_calls_are_found.load(std::memory_order_acquire)) {
    checkpoint_memory::find_calls(kCudaSoname);
    g_calls_are_found.store(true, std::memory_order_release);
  }
  start(cuda());
  return result;
}

}  // namespace gcr::preload::tracked
