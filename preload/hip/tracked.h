// The functions that tracked shims call instead of HIP: one per row with policy kTracked or kWaits.
//
// The shim calls it (for kTracked inside the gate) only if real_hip() has the function of that
// name. Parameters and result are HIP's.
#pragma once

#include "preload/function_table.h"
#include "preload/hip/abi/hip_abi.h"

namespace gcr::preload::tracked {
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  GCR_IF_TRACKED_##policy(result symbol params;, )
#include "preload/hip/hip_api.def"
}  // namespace gcr::preload::tracked

// The specific part of each tracked function, without the common parts (calls.cc). Each is defined
// in the file of its subject.
namespace gcr::preload::hip_calls {
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  GCR_IF_TRACKED_##policy(result symbol params;, )
#include "preload/hip/hip_api.def"
}  // namespace gcr::preload::hip_calls
