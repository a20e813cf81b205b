// The functions that tracked shims call instead of the driver's: one per row with policy kTracked
// or kWaits.
//
// The shim calls it (for kTracked inside the gate) only if real_driver() has the function of that
// name. Parameters and result are the driver's. Each function is defined in the file of its
// subject.
#pragma once

#include "preload/cuda/abi/driver_abi.h"
#include "preload/function_table.h"
#include "preload/memory/bounds.h"

namespace gcr::preload::tracked {

#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  GCR_IF_TRACKED_##policy(CUresult symbol params;, )
#include "preload/cuda/driver_api.def"

/// Opens memory to all devices after a refused copy (kCopies). True: the copy may succeed now.
bool open_to_copies();

/// The range around `address` that a copy or fill may touch (preload/cuda/bounds.h).
bounds::Range range_around(Address address);

}  // namespace gcr::preload::tracked
