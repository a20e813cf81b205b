// Reads PTX texts as images.
#pragma once

#include "preload/cuda/abi/driver_abi.h"
#include "tests/softgpu/engine/module.h"

namespace gcr::softgpu {

/// Parses an image that cuModuleLoadData gets. A binary image (cubin, fatbin), and a text with an
/// entry that kernels.cc does not know, are CUDA_ERROR_NO_BINARY_FOR_GPU.
CUresult read_image(const void* image, Image* result);

}  // namespace gcr::softgpu
