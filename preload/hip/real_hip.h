// HIP's own functions, and the table of HIP functions (hip_api.def) as data.
#pragma once

#include <type_traits>

#include "preload/function_table.h"
#include "preload/hip/abi/hip_abi.h"

namespace gcr::preload {

const FunctionTable& hip_table();

struct RealHip {
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  result(*symbol) params = nullptr;
#include "preload/hip/hip_api.def"
};

inline constinit LoadedDriver<RealHip, hip_table> g_real_hip;
inline const RealHip* real_hip() { return g_real_hip.functions(); }

/// The result of a function that this release lacks, or that is called while no HIP library is
/// loaded.
template <class Answer>
Answer missing_in_hip(hipError_t result) {
  if constexpr (std::is_same_v<Answer, hipError_t>) return result;
  if constexpr (std::is_pointer_v<Answer>) return nullptr;
}

/// HIP's own functions, as plain calls: `real::hipMemMap(...)`. A function that this release lacks
/// returns hipErrorNotSupported, or an empty value.
namespace real {

#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  inline result symbol params {                                                             \
    const RealHip* const hip = real_hip();                                                  \
    if (hip == nullptr || hip->symbol == nullptr) {                                         \
      return missing_in_hip<result>(hipErrorNotSupported);                                  \
    }                                                                                       \
    return hip->symbol args;                                                                \
  }
#include "preload/hip/hip_api.def"

}  // namespace real

}  // namespace gcr::preload
