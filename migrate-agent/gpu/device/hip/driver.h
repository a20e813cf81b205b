// AMD GPUs.
#pragma once

#include <memory>

#include "migrate-agent/gpu/device/device.h"

namespace gcr::device::hip {

/// Loads the first of libamdhip64.so.7, .6 and .5 that exists, and initialises it. kNotFound if
/// there is none, kUnavailable if it finds no GPU, kUnsupported if it lacks a function that is
/// needed. Blocks.
Result<std::shared_ptr<const Driver>> load();

}  // namespace gcr::device::hip
