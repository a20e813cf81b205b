// The functions that initialise NVML, NVIDIA's library that describes GPUs. A process that only
// counts GPUs, such as the parent of a job's ranks, has the same driver files open as one that uses
// CUDA. The driver's checkpoint includes them (measured with 580.159, whose NVML loads
// libcuda.so.1), so such a process needs a door too.
#pragma once

#include "preload/function_table.h"

namespace gcr::preload {

const FunctionTable& nvml_table();

/// The addresses for nvml_table(); null while no NVML is loaded. Threads and locks as
/// real_driver().
const void* real_nvml();

/// Records that the application has initialised NVML. Any thread.
void nvml_was_initialised();

}  // namespace gcr::preload
