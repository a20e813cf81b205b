// How much VRAM a process has of which nothing in the process tells.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>

#include "migrate-agent/gpu/device/device.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::inventory {

/// In bytes, on each GPU of NVIDIA's where the process may have some; never too little. Where the
/// management library does not know the process, that is all that anybody uses. Errors as FreeVram
/// has them. Blocks.
Result<std::map<Uuid, std::uint64_t>> used_vram(
    pid_t pid, const std::shared_ptr<const device::Driver>& driver);

}  // namespace gcr::inventory
