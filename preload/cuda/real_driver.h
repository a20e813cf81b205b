// The driver's own functions, and the table of CUDA driver functions (driver_api.def) as data.
#pragma once

#include <string_view>

#include "preload/cuda/abi/driver_abi.h"
#include "preload/function_table.h"

namespace gcr::preload {

inline constexpr std::string_view kCudaSoname = "libcuda.so.1";

/// The newest CUDA version of which driver_api.def and no_row.txt list all functions.
inline constexpr int kTableCudaVersion = 13030;

const FunctionTable& cuda_table();

struct RealDriver {
#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  CUresult(*symbol) params = nullptr;
#include "preload/cuda/driver_api.def"
};

inline constinit LoadedDriver<RealDriver, cuda_table> g_real_driver;
inline const RealDriver* real_driver() { return g_real_driver.functions(); }

/// The driver's own functions, as plain calls: `real::cuMemMap(...)`. A function that this driver
/// lacks returns CUDA_ERROR_NOT_SUPPORTED.
namespace real {

#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args)   \
  inline CUresult symbol params {                                                        \
    const RealDriver* const driver = real_driver();                                      \
    if (driver == nullptr || driver->symbol == nullptr) return CUDA_ERROR_NOT_SUPPORTED; \
    return driver->symbol args;                                                          \
  }
#include "preload/cuda/driver_api.def"

}  // namespace real

}  // namespace gcr::preload
