// Compiled, never run: every row of driver_api.def compared with the function of that name in
// cuda.h and with the typedef of that version in cudaTypedefs.h, as far as the toolkit is new
// enough.
// NOLINTNEXTLINE(bugprone-reserved-identifier): a name of CUDA
#define __CUDA_API_VERSION_INTERNAL  // declares every symbol under its exported name
#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstddef>
#include <type_traits>

static_assert(CUDA_VERSION >= 13000);

#define GCR_TYPEDEF_kLegacy(name, version) PFN_##name##_v##version
#define GCR_TYPEDEF_kPtds(name, version) PFN_##name##_v##version##_ptds
#define GCR_TYPEDEF_kPtsz(name, version) PFN_##name##_v##version##_ptsz

#define GCR_COMPARE(symbol, public_name, since, flavour, params)                               \
  static_assert(std::is_same_v<decltype(&symbol), CUresult(*) params>, #symbol);               \
  static_assert(std::is_same_v<GCR_TYPEDEF_##flavour(public_name, since), CUresult(*) params>, \
                #symbol " in version " #since);

// GCR_LATER_<since> is defined for what is newer than the toolkit: its comma makes GCR_SKIP second.
#define GCR_SKIP(symbol, public_name, since, flavour, params)
#define GCR_SECOND(first, second, ...) second
#define GCR_CHOOSE(...) GCR_SECOND(__VA_ARGS__)
#if CUDA_VERSION < 13010
#define GCR_LATER_13010 , GCR_SKIP
#endif
#if CUDA_VERSION < 13020
#define GCR_LATER_13020 , GCR_SKIP
#endif
#if CUDA_VERSION < 13030
#define GCR_LATER_13030 , GCR_SKIP
#endif
#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  GCR_CHOOSE(GCR_LATER_##since, GCR_COMPARE, )(symbol, public_name, since, flavour, params)
#include "preload/cuda/driver_api.def"
