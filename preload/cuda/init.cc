// The calls with which a process starts to use CUDA or NVML, which create its door; and the call
// that reveals a profiler.
#include <atomic>
#include <cstring>

#include "preload/checkpoint_memory.h"
#include "preload/cuda/face.h"
#include "preload/cuda/nvml.h"
#include "preload/cuda/real_driver.h"
#include "preload/cuda/tracked.h"

namespace gcr::preload {
namespace {

constinit std::atomic<bool> g_calls_are_found{false};

void start_cuda() {
  // No static initialiser: its guard is a lock, and no lock may be held while waiting for the
  // loader's.
  if (!g_calls_are_found.load(std::memory_order_acquire)) {
    checkpoint_memory::find_calls(kCudaSoname);
    g_calls_are_found.store(true, std::memory_order_release);
  }
  start(cuda());
}

}  // namespace

void nvml_was_initialised() {
  // NVML alone needs a door only if it has loaded libcuda.so.1: without that, there is no driver
  // state to checkpoint.
  if (real_driver() != nullptr) start_cuda();
}

}  // namespace gcr::preload

namespace gcr::preload::tracked {

CUresult cuInit(unsigned int flags) {
  const CUresult result = real::cuInit(flags);
  if (result != CUDA_SUCCESS) return result;
  cuda().used.store(true, std::memory_order_relaxed);
  start_cuda();
  return result;
}

CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  // An undocumented driver table that CUPTI requests when a tool subscribes to it or enables an
  // activity. Neither the CUDA runtime nor a library of the CUDA 13 toolkit requests it.
  constexpr char kOfProfilers[] =
      "\x2c\x8e\x0a\xd8\x07\x10\xab\x4e\x90\xdd\x54\x71\x9f\xe5\xf7\x4b";
  const CUresult result = real::cuGetExportTable(table, id);
  if (result == CUDA_SUCCESS && std::memcmp(id->bytes, kOfProfilers, sizeof(id->bytes)) == 0) {
    cuda().profiled.store(true, std::memory_order_relaxed);
  }
  return result;
}

}  // namespace gcr::preload::tracked
