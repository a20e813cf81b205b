// The table of driver functions (driver_api.def) as data: names, versions, and the address of the
// shim that stands in for each. Constant; no initialisation at run time, so it can be used before
// any constructor has run.
#pragma once

#include <cstddef>
#include <span>

#include "preload/cuda/abi/driver_abi.h"

namespace gcr::preload {

/// What stands between the application and one driver function.
enum class Policy : unsigned char {
  kInvalid = 0,
  kGated,    ///< the shim enters the gate and calls the driver
  kTracked,  ///< the shim enters the gate and calls gcr::preload::tracked::<symbol>
  kWaits,    ///< the shim calls gcr::preload::tracked::<symbol> without entering the gate
  kLookup,   ///< the shim answers with shims, see driver_lookup.h
  kPassed,   ///< no shim
};

/// What a function takes stream 0 for.
enum class Flavour : unsigned char {
  kInvalid = 0,
  kLegacy,  ///< the legacy default stream; also functions that have nothing to do with streams
  kPtds,    ///< the calling thread's default stream, in a synchronous function
  kPtsz,    ///< the same, in a function that names a stream
};

/// The newest CUDA version whose functions the table knows in full.
inline constexpr int kTableCudaVersion = 13000;

/// One row of driver_api.def.
struct DriverRow {
  const char* symbol;
  const char* public_name;
  int since;
  Flavour flavour;
  Policy policy;
  void* shim;                     ///< null for kPassed
  std::size_t real_offset_bytes;  ///< of the driver's own address inside RealDriver
};

/// All rows, in the order of driver_api.def.
std::span<const DriverRow> driver_rows();

/// The row of an exported symbol that has a shim, or null. Any thread; neither locks nor allocates.
const DriverRow* find_shimmed_symbol(const char* symbol);

/// The row whose shim answers for cuGetProcAddress(public_name, cuda_version, flags) with a driver
/// that gave `address`: the row with that very address, whatever it is called; otherwise, for a
/// driver whose lookup gives other addresses than its symbol table, the newest row of that name and
/// flavour that is not newer than `cuda_version` and that the driver has. Null: there is no shim
/// for it. Any thread; neither locks nor allocates.
const DriverRow* find_looked_up(const char* public_name, int cuda_version, cuuint64_t flags,
                                void* address);

}  // namespace gcr::preload
