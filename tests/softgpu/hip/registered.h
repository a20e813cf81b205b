// Code in programs and libraries: their constructors register it, and it is loaded on a GPU when
// one of its kernels or variables is first named.
#pragma once

#include "tests/softgpu/hip/face.h"

namespace gcr::softgpu::hip {

/// The engine's handle of the kernel that the program knows by this address; kNotFound if there is
/// none.
Result find_registered_kernel(Process& process, const void* host_function, const void** kernel);
/// The variable of that address on the context's device. kNotFound if there is none.
Result find_registered_variable(Process& process, Context& context, const void* host_variable,
                                Global* variable);

}  // namespace gcr::softgpu::hip
