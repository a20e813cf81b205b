// Code that programs and libraries bring along: their constructors register it, and it is put on a
// GPU when one of its kernels or variables is first named.
#pragma once

#include "tests/softgpu/hip/face.h"

namespace gcr::softgpu::hip {

/// The handle, for the engine, of the kernel that the program knows by this address;
/// kNotFound if none is.
Result find_registered_kernel(Process& process, const void* host_function, const void** kernel);
/// The variable of that address on the context's device. kNotFound likewise.
Result find_registered_variable(Process& process, Context& context, const void* host_variable,
                                Global* variable);

}  // namespace gcr::softgpu::hip
