// NVIDIA GPUs.
#pragma once

#include <memory>

#include "migrate-agent/gpu/device/device.h"

namespace gcr::device::cuda {

/// Loads libcuda.so.1 and initialises it. kNotFound if there is no driver, kUnavailable if it finds
/// no GPU, kUnsupported if it lacks a function that is needed (the checkpoint API came with driver
/// 570). Blocks.
Result<std::shared_ptr<const Driver>> load();

}  // namespace gcr::device::cuda
