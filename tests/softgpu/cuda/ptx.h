// Reads PTX texts as images.
#pragma once

#include "preload/cuda/abi/driver_abi.h"
#include "tests/softgpu/engine/module.h"

namespace gcr::softgpu {

/// Reads an image as cuModuleLoadData takes it. A binary image (cubin, fatbin), and a text with an
/// entry that kernels.cc does not know, are CUDA_ERROR_NO_BINARY_FOR_GPU.
CUresult read_image(const void* image, Image* result);

}  // namespace gcr::softgpu
