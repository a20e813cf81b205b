// The functions that tracked shims call instead of the driver's: one per row with policy kTracked
// or kWaits.
//
// The shim calls it (for kTracked inside the gate) only if real_driver() has the function of that
// name. Parameters and result are the driver's. Each function is defined in the file of its
// subject.
#pragma once

#include "preload/cuda/abi/driver_abi.h"
#include "preload/memory/bounds.h"

namespace gcr::preload::tracked {

#define GCR_DECLARE_kGated(symbol, params)
#define GCR_DECLARE_kCopies(symbol, params)
#define GCR_DECLARE_kLookup(symbol, params)
#define GCR_DECLARE_kPassed(symbol, params)
#define GCR_DECLARE_kTracked(symbol, params) CUresult symbol params;
#define GCR_DECLARE_kWaits(symbol, params) CUresult symbol params;
#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  GCR_DECLARE_##policy(symbol, params)
#include "preload/cuda/driver_api.def"
#undef GCR_DECLARE_kGated
#undef GCR_DECLARE_kCopies
#undef GCR_DECLARE_kLookup
#undef GCR_DECLARE_kPassed
#undef GCR_DECLARE_kTracked
#undef GCR_DECLARE_kWaits

/// Opens memory to all devices after a refused copy (kCopies). True: the copy may succeed now.
bool open_to_copies();

/// The range around `address` that a copy or fill may touch (preload/cuda/bounds.h).
bounds::Range range_around(Address address);

}  // namespace gcr::preload::tracked
