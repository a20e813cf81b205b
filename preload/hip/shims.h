// The exported shims: one function per row of hip_api.def that is not kPassed, with the name and
// interface of the HIP function.
#pragma once

#include "preload/function_table.h"
#include "preload/hip/abi/hip_abi.h"

extern "C" {
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  GCR_IF_SHIM_##policy([[gnu::visibility("default")]] result symbol params;, )
#include "preload/hip/hip_api.def"
}
