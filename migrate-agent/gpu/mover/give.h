// Gives VRAM to a process, which maps it.
#pragma once

#include <functional>
#include <memory>

#include "migrate-agent/gpu/access/gpu_access.h"
#include "migrate-agent/gpu/allocations/allocations.h"
#include "migrate-agent/gpu/device/device.h"

namespace gcr::mover {

/// Attaches `vram` to a process. NVIDIA's driver lets a process use the GPUs that it saw when it
/// started. A process that saw only some of the GPUs (CUDA_VISIBLE_DEVICES, device control groups)
/// and was moved to another one cannot import memory of that GPU (measured with driver 580,
/// docs/design.md decision 1). Such a process allocates memory itself, and `vram` is copied into it
/// on the GPU, up to 1 GiB at a time, which needs as much free VRAM. `let_go` is called before
/// that, so that all other owners release `vram`.
Status give(gpu::GpuAccess& access, gpu::LocalDescriptors vram,
            const std::shared_ptr<const device::Driver>& driver,
            const std::function<void()>& let_go);

}  // namespace gcr::mover
