// The table of CUDA's driver functions (driver_api.def) as data.
#pragma once

#include "preload/function_table.h"

namespace gcr::preload {

/// The newest CUDA version whose functions the table knows in full.
inline constexpr int kTableCudaVersion = 13000;

const FunctionTable& cuda_table();

}  // namespace gcr::preload
