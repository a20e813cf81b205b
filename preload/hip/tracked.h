// The functions that tracked shims call instead of HIP: one per row with policy kTracked or kWaits.
//
// The shim calls it (for kTracked inside the gate) only if real_hip() has the function of that
// name. Parameters and result are HIP's.
#pragma once

#include "preload/hip/abi/hip_abi.h"

#define GCR_DECLARE_kGated(result, symbol, params)
#define GCR_DECLARE_kLookup(result, symbol, params)
#define GCR_DECLARE_kPassed(result, symbol, params)
#define GCR_DECLARE_kTracked(result, symbol, params) result symbol params;
#define GCR_DECLARE_kWaits(result, symbol, params) result symbol params;
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  GCR_DECLARE_##policy(result, symbol, params)
namespace gcr::preload::tracked {
#include "preload/hip/hip_api.def"
}  // namespace gcr::preload::tracked

// The specific part of each tracked function, without the common parts (calls.cc). Each is defined
// in the file of its subject.
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  GCR_DECLARE_##policy(result, symbol, params)
namespace gcr::preload::hip_calls {
#include "preload/hip/hip_api.def"
}  // namespace gcr::preload::hip_calls
#undef GCR_DECLARE_kGated
#undef GCR_DECLARE_kLookup
#undef GCR_DECLARE_kPassed
#undef GCR_DECLARE_kTracked
#undef GCR_DECLARE_kWaits
