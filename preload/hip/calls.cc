// Common parts of all tracked calls. The first one that succeeds starts HIP's runtime in this
// library. Each one leaves hipGetLastError as it would be without the library, as far as possible:
// up to 6.x that is the result of the thread's last call; from 7.0 on it is the last error.
#include <string_view>

#include "preload/hip/face.h"
#include "preload/hip/real_hip.h"
#include "preload/hip/tracked.h"
#include "preload/memory/contexts.h"

namespace gcr::preload {
namespace {

/// Notes all devices as contexts, because any thread may use any device without a tracked call.
void note_devices() {
  int count = 0;
  if (real::hipGetDeviceCount(&count) != hipSuccess) return;
  for (int device = 0; device < count; ++device) {
    note_created(hip(), context_of(device), device, false);
  }
}

void note_started() {
  static constinit std::atomic<bool> known{false};
  if (known.load(std::memory_order_relaxed)) return;
  note_devices();
  hip().used.store(true, std::memory_order_relaxed);
  known.store(start(hip()), std::memory_order_relaxed);
}

/// Sets the calling thread's last error with a HIP call that fails with `wanted`.
void set_last_error(hipError_t wanted) {
  if (real::hipPeekAtLastError() == wanted) return;
  if (wanted == hipSuccess) {
    real::hipGetLastError();
  } else if (wanted == hipErrorInvalidValue) {
    real::hipMemGetAllocationGranularity(nullptr, nullptr, hipMemAllocationGranularityMinimum);
  }  // no call produces other errors
}

template <class Call>
hipError_t with_last_error(const Call& call) {
  const hipError_t before = real::hipPeekAtLastError();
  const hipError_t result = call();
  const bool keeps_errors = hip_release() >= kRelease7_0;
  set_last_error(keeps_errors && result == hipSuccess ? before : result);
  return result;
}

template <bool kStarts, class Call>
auto tracked_call(const Call& call) {
  if constexpr (std::is_same_v<decltype(call()), void>) {
    call();
  } else {
    return with_last_error([&] {
      const hipError_t result = call();
      if (kStarts && result == hipSuccess) note_started();
      return result;
    });
  }
}

}  // namespace

namespace tracked {
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  GCR_IF_TRACKED_##policy(                                                                  \
      result symbol params {                                                                \
        return tracked_call<std::string_view(#policy) == "kTracked">(                       \
            [&] { return hip_calls::symbol args; });                                        \
      }, )
#include "preload/hip/hip_api.def"
}  // namespace tracked

}  // namespace gcr::preload
