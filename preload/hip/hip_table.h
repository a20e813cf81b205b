// The table of HIP functions (hip_api.def) as data.
#pragma once

#include "preload/function_table.h"

namespace gcr::preload {

const FunctionTable& hip_table();

}  // namespace gcr::preload
