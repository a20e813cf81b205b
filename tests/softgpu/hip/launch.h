// Launches as HIP's functions describe them.
#pragma once

#include "tests/softgpu/hip/face.h"

namespace gcr::softgpu::hip {

/// The operation that launches a kernel: one that the program registered under this address, or a
/// hipFunction_t. Arguments are copied; `extra` is used if `parameters` is null.
hipError_t make_launch(Process& process, Context& context, dim3 grid, dim3 block,
                       const void* function, void** parameters, void** extra, Operation* operation);

}  // namespace gcr::softgpu::hip
