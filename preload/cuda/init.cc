// The entry points: a process that initialises CUDA, or NVML alone, gets its door; a profiler shows
// itself.
#include <atomic>
#include <cstring>

#include "preload/checkpoint_memory.h"
#include "preload/cuda/driver_calls.h"
#include "preload/cuda/face.h"
#include "preload/cuda/nvml.h"
#include "preload/cuda/real_driver.h"
#include "preload/cuda/tracked.h"

namespace gcr::preload {
namespace {

constinit std::atomic<bool> g_calls_are_found{false};

void start_cuda() {
  // Not behind a static's guard: no lock is held while one waits for the loader's.
  if (!g_calls_are_found.load(std::memory_order_acquire)) {
    checkpoint_memory::find_calls(kCudaSoname);
    g_calls_are_found.store(true, std::memory_order_release);
  }
  start(cuda());
}

}  // namespace

void nvml_was_initialised() {
  // Without it the driver has nobody to checkpoint the process.
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
  // Of the driver's tables that have no header, one that CUPTI asks for when somebody subscribes to
  // it or enables an activity, and neither CUDA's runtime nor a library of CUDA 13's toolkit does.
  constexpr char kOfProfilers[] =
      "\x2c\x8e\x0a\xd8\x07\x10\xab\x4e\x90\xdd\x54\x71\x9f\xe5\xf7\x4b";
  const CUresult result = real::cuGetExportTable(table, id);
  if (result == CUDA_SUCCESS && std::memcmp(id->bytes, kOfProfilers, sizeof(id->bytes)) == 0) {
    cuda().profiled.store(true, std::memory_order_relaxed);
  }
  return result;
}

}  // namespace gcr::preload::tracked
