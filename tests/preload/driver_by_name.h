// The driver as a program finds it: by name.
#pragma once

#include <dlfcn.h>

#include "preload/cuda/abi/driver_abi.h"

namespace gcr::preload::test {

/// Every function of the library's CUDA table; null if the driver has none of that name.
struct Api {
#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  CUresult(*symbol) params = nullptr;
#include "preload/cuda/driver_api.def"

  bool load() {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return false;
#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  symbol = reinterpret_cast<decltype(symbol)>(::dlsym(library, #symbol));
#include "preload/cuda/driver_api.def"
    return true;
  }

  /// The same of libamdhip64.so.6, as far as HIP has the functions of the door's subject; the rest
  /// is null. In hip_by_name.cc.
  bool load_hip();
  CUresult (*hip_last_error)() = nullptr;  ///< hipGetLastError
};

}  // namespace gcr::preload::test
