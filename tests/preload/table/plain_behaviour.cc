// The tracked half of the library without tracking: every function calls the driver's. With the
// table's half it makes the library that these tests preload, so that they test only the table.
#include "preload/bindings.h"
#include "preload/cuda/real_driver.h"
#include "preload/cuda/tracked.h"
#include "preload/gate.h"
#include "preload/hip/real_hip.h"
#include "preload/hip/tracked.h"

namespace gcr::preload::tracked {
namespace {

unsigned int g_tracked_calls = 0;  // of HIP

}  // namespace

#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  GCR_IF_TRACKED_##policy(                                                             \
      CUresult symbol params { return real_driver()->symbol args; }, )
#include "preload/cuda/driver_api.def"

bool open_to_copies() { return false; }

bounds::Range range_around(Address) {
  return {bounds::current_tag(), 0, bounds::kUnlimited, bounds::kUnlimited};
}

#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  GCR_IF_TRACKED_##policy(                                                                  \
      result symbol params {                                                                \
        ++g_tracked_calls;                                                                  \
        return real_hip()->symbol args;                                                     \
      }, )
#include "preload/hip/hip_api.def"

}  // namespace gcr::preload::tracked

namespace gcr::preload {

void nvml_was_initialised() {}

}  // namespace gcr::preload

/// For the fake drivers: threads inside the gate at this moment.
extern "C" __attribute__((visibility("default"))) unsigned int cuTestGateInFlight() {
  return gcr::preload::gate::in_flight();
}

/// For the tests.
extern "C" __attribute__((visibility("default"))) unsigned int cuTestWithheld() {
  return gcr::preload::withheld_lookups();
}

extern "C" __attribute__((visibility("default"))) int cuTestFindUngated(char* culprit,
                                                                        std::size_t bytes) {
  return static_cast<int>(gcr::preload::bindings::scan({culprit, bytes}));
}

extern "C" __attribute__((visibility("default"))) unsigned int hipTestTrackedCalls() {
  return gcr::preload::tracked::g_tracked_calls;
}
