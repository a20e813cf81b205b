// A test can make a machine refuse checkpoint calls: see README.md, "refuse".
#pragma once

#include <string_view>

#include "preload/cuda/abi/driver_abi.h"

namespace gcr::softgpu {

/// What the caller's machine answers to `call` ("lock", "checkpoint", "restore", "unlock") instead
/// of doing it; CUDA_SUCCESS: nothing, the call goes on.
CUresult refusal_of(std::string_view call);

}  // namespace gcr::softgpu
