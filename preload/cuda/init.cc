// The entry point: a process that initialises CUDA gets its door.
#include "preload/checkpoint_memory.h"
#include "preload/cuda/driver_calls.h"
#include "preload/cuda/face.h"
#include "preload/cuda/tracked.h"

namespace gcr::preload::tracked {

CUresult cuInit(unsigned int flags) {
  const CUresult result = real::cuInit(flags);
  if (result != CUDA_SUCCESS) return result;
  checkpoint_memory::find_calls(kCudaSoname);
  start(cuda());
  return result;
}

}  // namespace gcr::preload::tracked
