// The shims of gated, tracked and waiting rows; lookup.cc has those of kLookup.
//
// HIP calls its own exported functions, and so reaches the shims again. Such nested calls go to HIP
// at once, and so do all calls of this library's own threads.
//
// A shim whose function the loaded HIP library lacks does nothing.
#include "preload/hip/shims.h"

#include "preload/gate.h"
#include "preload/hip/real_hip.h"
#include "preload/hip/tracked.h"

namespace gcr::preload {
namespace {

/// Nesting depth of the calling thread in HIP shims.
constinit thread_local unsigned t_shims = 0;

bool is_call_of_hip() { return t_shims != 0 || gate::is_this_thread_exempt(); }

class InsideShim {
 public:
  InsideShim() { ++t_shims; }
  ~InsideShim() { --t_shims; }
  InsideShim(const InsideShim&) = delete;
  InsideShim& operator=(const InsideShim&) = delete;
};

template <class Answer>
[[gnu::cold]] Answer no_function(const RealHip* hip) {
  return missing_in_hip<Answer>(hip == nullptr ? hipErrorNotInitialized : hipErrorNotSupported);
}

}  // namespace
}  // namespace gcr::preload

#define GCR_SHIM(result, symbol, params, args, scope, call)      \
  [[gnu::flatten]] result symbol params {                        \
    const gcr::preload::RealHip* hip = gcr::preload::real_hip(); \
    if (hip == nullptr || hip->symbol == nullptr) [[unlikely]] { \
      return gcr::preload::no_function<result>(hip);             \
    }                                                            \
    if (gcr::preload::is_call_of_hip()) [[unlikely]]             \
      return hip->symbol args;                                   \
    const gcr::preload::InsideShim in_shim;                      \
    scope;                                                       \
    return call;                                                 \
  }
#define GCR_INSIDE const gcr::preload::GateScope inside
#define GCR_BEHAVIOUR(symbol, args)                                  \
  gcr::preload::g_real_hip.are_calls_left_alone() ? hip->symbol args \
                                                  : gcr::preload::tracked::symbol args
#define GCR_DEFINE_kGated(result, symbol, params, args) \
  GCR_SHIM(result, symbol, params, args, GCR_INSIDE, hip->symbol args)
#define GCR_DEFINE_kTracked(result, symbol, params, args) \
  GCR_SHIM(result, symbol, params, args, GCR_INSIDE, GCR_BEHAVIOUR(symbol, args))
#define GCR_DEFINE_kWaits(result, symbol, params, args) \
  GCR_SHIM(result, symbol, params, args, , GCR_BEHAVIOUR(symbol, args))
#define GCR_DEFINE_kLookup(result, symbol, params, args)
#define GCR_DEFINE_kPassed(result, symbol, params, args)
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  GCR_DEFINE_##policy(result, symbol, params, args)

extern "C" {
#include "preload/hip/hip_api.def"
}
