// HIP's own functions, behind the shims.
//
// One pointer per row of hip_api.def, read from the symbol table of the loaded object with the
// SONAME libamdhip64.so.5, .6 or .7: not through dlsym, which returns shims.
#pragma once

#include <atomic>
#include <type_traits>

#include "preload/hip/abi/hip_abi.h"

namespace gcr::preload {

/// HIP's functions under their exported names. Null where this release lacks one.
struct RealHip {
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  result(*symbol) params = nullptr;
#include "preload/hip/hip_api.def"
};

namespace real_hip_internal {
extern std::atomic<const RealHip*> g_hip;
extern std::atomic<bool> g_left_to_hip;
const RealHip* find();
}  // namespace real_hip_internal

/// The loaded HIP library, or null while none is loaded. Threads, locks and lifetime as
/// real_driver().
inline const RealHip* real_hip() {
  const RealHip* hip = real_hip_internal::g_hip.load(std::memory_order_acquire);
  return hip != nullptr ? hip : real_hip_internal::find();
}

/// Makes tracked shims only call HIP, in the child of a fork; see leave_calls_to_driver().
inline void leave_calls_to_hip() {
  real_hip_internal::g_left_to_hip.store(true, std::memory_order_relaxed);
}
inline bool calls_are_left_to_hip() {
  return real_hip_internal::g_left_to_hip.load(std::memory_order_relaxed);
}

/// The result of a function that this release lacks, or that is called while no HIP library is
/// loaded.
template <class Answer>
Answer missing_in_hip(hipError_t result) {
  if constexpr (std::is_same_v<Answer, hipError_t>) return result;
  if constexpr (std::is_pointer_v<Answer>) return nullptr;
}

}  // namespace gcr::preload
