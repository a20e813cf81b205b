// The driver as a program finds it: by name.
#pragma once

#include <dlfcn.h>

#include "preload/cuda/abi/driver_abi.h"

namespace gcr::preload::test {

/// Every function of the library's table; null where the driver has none of that name.
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
};

}  // namespace gcr::preload::test
