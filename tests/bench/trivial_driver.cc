// A libcuda.so.1 whose every function returns at once: the rest of a call's time is that of the
// preload library.
#include "preload/cuda/abi/driver_abi.h"

#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  extern "C" __attribute__((visibility("default"))) CUresult symbol params;            \
  CUresult symbol params { return CUDA_SUCCESS; }
#include "preload/cuda/driver_api.def"
