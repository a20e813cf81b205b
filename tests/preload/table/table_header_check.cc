// Compiled, never run: every row of driver_api.def against the function of that name in cuda.h and
// against the typedef of that version in cudaTypedefs.h.
#define __CUDA_API_VERSION_INTERNAL  // declares every symbol under its exported name
#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstddef>
#include <type_traits>

static_assert(CUDA_VERSION >= 13000);

#define GCR_TYPEDEF_kLegacy(name, version) PFN_##name##_v##version
#define GCR_TYPEDEF_kPtds(name, version) PFN_##name##_v##version##_ptds
#define GCR_TYPEDEF_kPtsz(name, version) PFN_##name##_v##version##_ptsz

#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args)         \
  static_assert(std::is_same_v<decltype(&symbol), CUresult(*) params>, #symbol);               \
  static_assert(std::is_same_v<GCR_TYPEDEF_##flavour(public_name, since), CUresult(*) params>, \
                #symbol " in version " #since);
#include "preload/cuda/driver_api.def"
