// The table of CUDA's driver functions (driver_api.def) as data.
#pragma once

#include "preload/function_table.h"

namespace gcr::preload {

/// The newest CUDA version whose functions driver_api.def and no_row.txt know in full.
inline constexpr int kTableCudaVersion = 13030;

const FunctionTable& cuda_table();

}  // namespace gcr::preload
