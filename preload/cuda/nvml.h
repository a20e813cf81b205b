// NVML, NVIDIA's library that describes GPUs: the functions that initialise it. A process that only
// counts GPUs, such as the parent of a job's ranks, has the driver's files open as one that uses
// CUDA has them. The driver's checkpoint takes them along (measured: 580.159, whose NVML loads
// libcuda.so.1), so such a process needs what others have: a door.
#pragma once

#include "preload/function_table.h"

namespace gcr::preload {

const FunctionTable& nvml_table();

/// The addresses for nvml_table(), null while no NVML is loaded. Like real_driver().
const void* real_nvml();

/// The application has initialised NVML. Any thread.
void nvml_was_initialised();

}  // namespace gcr::preload
