// Parses the declarations of a HIP program: kernels with their parameters, variables with their
// initial values. Macros are expanded without their arguments, conditionals are ignored, and bodies
// are skipped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/softgpu/engine/module.h"

namespace gcr::softgpu::hip {

struct KernelSource {
  Image image;
  std::string errors;  ///< a line for each; empty if it was understood
};

/// `texts` are the headers that it includes, then the program.
KernelSource read_source(const std::vector<std::string_view>& texts);

}  // namespace gcr::softgpu::hip
