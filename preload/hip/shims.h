// The exported shims: one function per row of hip_api.def that is not kPassed, with the name and
// interface of the HIP function. Policy (preload/function_table.h) says what each does.
#pragma once

#include "preload/hip/abi/hip_abi.h"

#define GCR_HIP_EXPORT __attribute__((visibility("default")))

#define GCR_DECLARE_kGated(result, symbol, params) GCR_HIP_EXPORT result symbol params;
#define GCR_DECLARE_kTracked(result, symbol, params) GCR_HIP_EXPORT result symbol params;
#define GCR_DECLARE_kWaits(result, symbol, params) GCR_HIP_EXPORT result symbol params;
#define GCR_DECLARE_kLookup(result, symbol, params) GCR_HIP_EXPORT result symbol params;
#define GCR_DECLARE_kPassed(result, symbol, params)
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  GCR_DECLARE_##policy(result, symbol, params)
extern "C" {
#include "preload/hip/hip_api.def"
}
#undef GCR_DECLARE_kGated
#undef GCR_DECLARE_kTracked
#undef GCR_DECLARE_kWaits
#undef GCR_DECLARE_kLookup
#undef GCR_DECLARE_kPassed
