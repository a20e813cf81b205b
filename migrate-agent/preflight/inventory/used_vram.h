// Estimates the VRAM of a process that does not report it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>

#include "migrate-agent/gpu/device/device.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::inventory {

/// Returns an upper bound in bytes for each NVIDIA GPU on which the process may have VRAM. If NVML
/// does not list the process, that is the VRAM that all processes use. Errors like FreeVram.
/// Blocks.
Result<std::map<Uuid, std::uint64_t>> used_vram(
    pid_t pid, const std::shared_ptr<const device::Driver>& driver);

}  // namespace gcr::inventory
