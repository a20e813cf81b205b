// The table of CUDA driver functions (driver_api.def) as data.
#pragma once

#include "preload/function_table.h"

namespace gcr::preload {

/// The newest CUDA version of which driver_api.def and no_row.txt list all functions.
inline constexpr int kTableCudaVersion = 13030;

const FunctionTable& cuda_table();

}  // namespace gcr::preload
