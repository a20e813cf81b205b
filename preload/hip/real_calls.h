// HIP's own functions, as plain calls: `real::hipMemMap(...)`. A function that this release lacks
// returns hipErrorNotSupported, or an empty value.
#pragma once

#include "preload/hip/real_hip.h"

namespace gcr::preload::real {

#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  inline result symbol params {                                                             \
    const RealHip* const hip = real_hip();                                                  \
    if (hip == nullptr || hip->symbol == nullptr) {                                         \
      return missing_in_hip<result>(hipErrorNotSupported);                                  \
    }                                                                                       \
    return hip->symbol args;                                                                \
  }
#include "preload/hip/hip_api.def"

}  // namespace gcr::preload::real
