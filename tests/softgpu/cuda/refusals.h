// A test can make a machine refuse checkpoint calls: see README.md, "refuse".
#pragma once

#include <string_view>

#include "preload/cuda/abi/driver_abi.h"

namespace gcr::softgpu {

/// The injected result of the caller's machine for `call` ("lock", "checkpoint", "restore",
/// "unlock"); CUDA_SUCCESS: none, the call proceeds.
CUresult refusal_of(std::string_view call);

}  // namespace gcr::softgpu
