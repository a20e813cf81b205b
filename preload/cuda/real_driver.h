// The driver's own functions, behind the shims.
//
// One pointer per row of driver_api.def, read from the symbol table of the loaded object with the
// SONAME libcuda.so.1: not through dlsym, which returns shims.
#pragma once

#include <atomic>
#include <string_view>

#include "preload/cuda/abi/driver_abi.h"
#include "preload/cuda/driver_table.h"

namespace gcr::preload {

inline constexpr std::string_view kCudaSoname = "libcuda.so.1";

/// The driver's functions under their exported names. Null where this driver lacks one.
struct RealDriver {
#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  CUresult(*symbol) params = nullptr;
#include "preload/cuda/driver_api.def"
};

namespace real_driver_internal {
extern std::atomic<const RealDriver*> g_driver;
extern std::atomic<bool> g_left_to_driver;
const RealDriver* find();
}  // namespace real_driver_internal

/// The loaded driver, or null while none is loaded. Any thread. The first call that finds a driver
/// reads all its addresses and prevents its unloading; that call may take the loader's lock. Later
/// calls are one load. The result stays valid for the life of the process.
inline const RealDriver* real_driver() {
  const RealDriver* driver = real_driver_internal::g_driver.load(std::memory_order_acquire);
  return driver != nullptr ? driver : real_driver_internal::find();
}

/// Makes tracked shims only call the driver, as gated ones do. For the child of a fork, where the
/// driver refuses all work: the application then gets the driver's own errors.
inline void leave_calls_to_driver() {
  real_driver_internal::g_left_to_driver.store(true, std::memory_order_relaxed);
}
inline bool calls_are_left_to_driver() {
  return real_driver_internal::g_left_to_driver.load(std::memory_order_relaxed);
}

}  // namespace gcr::preload
