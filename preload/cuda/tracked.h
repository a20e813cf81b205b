// What the library does instead of the driver: one function per row with policy kTracked or kWaits.
//
// A shim calls it, for kTracked inside the gate, after real_driver() was found to have the function
// of that name. Parameters and result are the driver's; each function is defined in the file of its
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

/// For kCopies: whether a copy that the driver has refused may succeed now.
bool open_to_copies();

/// For copies and fills: how far one may go from an address (preload/cuda/bounds.h).
bounds::Range range_around(Address address);

}  // namespace gcr::preload::tracked
