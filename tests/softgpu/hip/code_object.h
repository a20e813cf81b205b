// The software GPU's code objects: the output of hipRTC, and the input of modules. A text with a
// line for each kernel and variable, so that it ends at its first zero:
//
//   software GPU code object
//   kernel <name> <bytes of each parameter>...
//   variable <name> <bytes> <first bytes, hexadecimal>...
#pragma once

#include <string>

#include "tests/softgpu/engine/module.h"

namespace gcr::softgpu::hip {

std::string write_code(const Image& image);

/// kInvalidImage: it is no code object. kNoBinaryForGpu: it is code of a real GPU, or names a
/// kernel that the engine does not know.
Result read_code(const void* code, Image* image);

}  // namespace gcr::softgpu::hip
