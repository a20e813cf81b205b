// Compiled, never run: every row of hip_api.def that HIP 5.2 exports, declared once more after its
// headers. A function of C cannot be declared twice with different types; table_test.py knows which
// rows the headers do not declare.
#include <hip/hip_ext.h>
#include <hip/hip_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

static_assert(HIP_VERSION_MAJOR == 5 && HIP_VERSION_MINOR == 2);

extern "C" {
// Later rows expand to nothing.
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  GCR_IN_##since(result symbol params;)
#define GCR_IN_502(...) __VA_ARGS__
#define GCR_IN_503(...)
#define GCR_IN_505(...)
#define GCR_IN_506(...)
#define GCR_IN_507(...)
#define GCR_IN_600(...)
#define GCR_IN_601(...)
#define GCR_IN_602(...)
#define GCR_IN_603(...)
#define GCR_IN_604(...)
#define GCR_IN_700(...)
#define GCR_IN_701(...)
#define GCR_IN_702(...)
#define GCR_IN_712(...)
#define GCR_IN_714(...)
#define GCR_IN_1001(...)
#include "preload/hip/hip_api.def"
}

// C++ functions with different types are different functions.
#define GCR_CXX(symbol, name) static_assert(std::is_same_v<decltype(&symbol), decltype(&name)>);
GCR_CXX(_Z22hipCreateSurfaceObjectPP13__hip_surfacePK15hipResourceDesc, hipCreateSurfaceObject)
GCR_CXX(_Z23hipDestroySurfaceObjectP13__hip_surface, hipDestroySurfaceObject)
GCR_CXX(
    _Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j,
    hipExtModuleLaunchKernel)
GCR_CXX(
    _Z24hipHccModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_,
    hipHccModuleLaunchKernel)
