// The exported shims: one function per row of driver_api.def that is not kPassed, with the name and
// the interface of the driver's function.
#pragma once

#include "preload/cuda/abi/driver_abi.h"
#include "preload/function_table.h"

extern "C" {
#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  GCR_IF_SHIM_##policy([[gnu::visibility("default")]] CUresult symbol params;, )
#include "preload/cuda/driver_api.def"
}
