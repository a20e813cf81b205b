// The driver's own functions, as plain calls: `real::cuMemMap(...)`. A function that this driver
// lacks returns CUDA_ERROR_NOT_SUPPORTED.
#pragma once

#include "preload/cuda/real_driver.h"

namespace gcr::preload::real {

#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args)   \
  inline CUresult symbol params {                                                        \
    const RealDriver* const driver = real_driver();                                      \
    if (driver == nullptr || driver->symbol == nullptr) return CUDA_ERROR_NOT_SUPPORTED; \
    return driver->symbol args;                                                          \
  }
#include "preload/cuda/driver_api.def"

}  // namespace gcr::preload::real
