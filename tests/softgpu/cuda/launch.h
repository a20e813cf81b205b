// Launches as CUDA's functions describe them.
#pragma once

#include "tests/softgpu/cuda/face.h"

namespace gcr::softgpu {

/// The operation that launches a function (a CUfunction or a CUkernel); arguments are copied.
CUresult make_launch(Process& process, Context& context, const CUlaunchConfig& config,
                     const void* function, void** parameters, void** extra, Operation* operation);

}  // namespace gcr::softgpu
