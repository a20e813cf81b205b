// The exported shims: one function per row of driver_api.def that is not kPassed, with the name and
// the interface of the driver's function. Policy (preload/function_table.h) says what each does.
#pragma once

#include "preload/cuda/abi/driver_abi.h"

#define GCR_PRELOAD_EXPORT __attribute__((visibility("default")))

#define GCR_DECLARE_kGated(symbol, params) GCR_PRELOAD_EXPORT CUresult symbol params;
#define GCR_DECLARE_kCopies(symbol, params) GCR_PRELOAD_EXPORT CUresult symbol params;
#define GCR_DECLARE_kTracked(symbol, params) GCR_PRELOAD_EXPORT CUresult symbol params;
#define GCR_DECLARE_kWaits(symbol, params) GCR_PRELOAD_EXPORT CUresult symbol params;
#define GCR_DECLARE_kLookup(symbol, params) GCR_PRELOAD_EXPORT CUresult symbol params;
#define GCR_DECLARE_kPassed(symbol, params)
#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  GCR_DECLARE_##policy(symbol, params)
extern "C" {
#include "preload/cuda/driver_api.def"
}
#undef GCR_DECLARE_kGated
#undef GCR_DECLARE_kCopies
#undef GCR_DECLARE_kTracked
#undef GCR_DECLARE_kWaits
#undef GCR_DECLARE_kLookup
#undef GCR_DECLARE_kPassed
