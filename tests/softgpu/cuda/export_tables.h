// The driver's tables without a header that this project knows.
#pragma once

#include <cstddef>

#include "preload/cuda/abi/driver_abi.h"

namespace gcr::softgpu {

/// Requested by CUPTI (CUDA 13.0's) when a program subscribes to it, and by nothing else.
inline constexpr CUuuid kProfilerTable = {
    {0x2c, static_cast<char>(0x8e), 0x0a, static_cast<char>(0xd8), 0x07, 0x10,
     static_cast<char>(0xab), 0x4e, static_cast<char>(0x90), static_cast<char>(0xdd), 0x54, 0x71,
     static_cast<char>(0x9f), static_cast<char>(0xe5), static_cast<char>(0xf7), 0x4b}};

/// Requested by NVML when it is initialised. The functions of the real one are unknown.
inline constexpr CUuuid kNvmlTable = {
    {0x69, static_cast<char>(0xa2), static_cast<char>(0x8e), static_cast<char>(0x9f)}};
struct NvmlTable {
  std::size_t bytes;
  /// From now on the process can be checkpointed.
  CUresult (*attend)();
  int (*count)();
  /// Writes 16 bytes; false if there is no such GPU.
  bool (*uuid)(int index, void* bytes);
};

}  // namespace gcr::softgpu
