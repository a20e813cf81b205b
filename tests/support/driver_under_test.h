// Tests of code above a GPU's driver run with each: NVIDIA's, or AMD's if GCR_TEST_GPU is "amd".
#pragma once

#include <cstdlib>
#include <memory>
#include <string_view>

#include "migrate-agent/gpu/device/cuda/driver.h"
#include "migrate-agent/gpu/device/hip/driver.h"

namespace gcr::device {

inline Result<std::shared_ptr<const Driver>> load_driver_under_test() {
  const char* const gpu = std::getenv("GCR_TEST_GPU");
  return gpu != nullptr && std::string_view(gpu) == "amd" ? hip::load() : cuda::load();
}

}  // namespace gcr::device
