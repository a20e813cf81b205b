// The shims of gated, tracked and waiting rows; driver_lookup.cc has those of kLookup.
//
// A shim may be called although the loaded driver lacks its function (through a weak reference, or
// if the driver is older than the application). It then returns the error of cuGetProcAddress.
#include "preload/cuda/shims.h"

#include "preload/cuda/bounds.h"
#include "preload/cuda/real_driver.h"
#include "preload/cuda/tracked.h"
#include "preload/gate.h"

namespace gcr::preload {
namespace {

[[gnu::cold]] CUresult missing(const RealDriver* driver) {
  return driver == nullptr ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_NOT_FOUND;
}

/// Calls the driver; after a refused copy, gives all devices access to all plain allocations and
/// calls it again. The driver copies its own memory between devices without peer access, but not
/// memory from cuMemCreate.
template <class Call>
CUresult copy(const Call& call) {
  const CUresult result = call();
  if (result != CUDA_ERROR_INVALID_VALUE) [[likely]]
    return result;
  return tracked::open_to_copies() ? call() : result;
}

}  // namespace
}  // namespace gcr::preload

#define GCR_SHIM(symbol, params, scope, call)                             \
  [[gnu::flatten]] CUresult symbol params {                               \
    const gcr::preload::RealDriver* driver = gcr::preload::real_driver(); \
    if (driver == nullptr || driver->symbol == nullptr) [[unlikely]] {    \
      return gcr::preload::missing(driver);                               \
    }                                                                     \
    scope;                                                                \
    return call;                                                          \
  }
#define GCR_INSIDE const gcr::preload::GateScope inside
#define GCR_BEHAVIOUR(symbol, args)                                        \
  gcr::preload::g_real_driver.are_calls_left_alone() ? driver->symbol args \
                                                     : gcr::preload::tracked::symbol args
#define GCR_BOUNDED(public_name, args, call) \
  gcr::preload::Beyond<gcr::preload::names::public_name>::of args ? CUDA_ERROR_INVALID_VALUE : call
#define GCR_DEFINE_kGated(symbol, public_name, params, args) \
  GCR_SHIM(symbol, params, GCR_INSIDE, GCR_BOUNDED(public_name, args, driver->symbol args))
#define GCR_DEFINE_kCopies(symbol, public_name, params, args) \
  GCR_SHIM(                                                   \
      symbol, params, GCR_INSIDE,                             \
      GCR_BOUNDED(public_name, args, gcr::preload::copy([&] { return driver->symbol args; })))
#define GCR_DEFINE_kTracked(symbol, public_name, params, args) \
  GCR_SHIM(symbol, params, GCR_INSIDE, GCR_BEHAVIOUR(symbol, args))
#define GCR_DEFINE_kWaits(symbol, public_name, params, args) \
  GCR_SHIM(symbol, params, , GCR_BEHAVIOUR(symbol, args))
#define GCR_DEFINE_kLookup(symbol, public_name, params, args)
#define GCR_DEFINE_kPassed(symbol, public_name, params, args)
#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  GCR_DEFINE_##policy(symbol, public_name, params, args)

extern "C" {
#include "preload/cuda/driver_api.def"
}
