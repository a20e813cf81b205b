// The entry point: a process that initialises CUDA gets its door.
#include "preload/door.h"
#include "preload/driver_calls.h"
#include "preload/tracked.h"

namespace gcr::preload::tracked {

CUresult cuInit(unsigned int flags) {
  const CUresult result = real::cuInit(flags);
  if (result == CUDA_SUCCESS) start_door();
  return result;
}

}  // namespace gcr::preload::tracked
