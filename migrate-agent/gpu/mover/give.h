// How VRAM goes back into a process.
#pragma once

#include <functional>
#include <memory>

#include "migrate-agent/gpu/access/gpu_access.h"
#include "migrate-agent/gpu/allocations/allocations.h"
#include "migrate-agent/gpu/device/device.h"

namespace gcr::mover {

/// Attaches `vram` to a process. NVIDIA's driver knows the GPUs of a process by what it saw when it
/// started: one that saw only some of its machine's (CUDA_VISIBLE_DEVICES, device control groups)
/// and has come to another GPU cannot import memory of that (measured with driver 580,
/// docs/design.md decision 1). Such a process makes memory of its own, into which `vram` is copied
/// on the GPU, some at a time: as much VRAM is needed besides. `let_go` is called before, for what
/// else owns `vram`.
Status give(gpu::GpuAccess& access, gpu::LocalDescriptors vram,
            const std::shared_ptr<const device::Driver>& driver,
            const std::function<void()>& let_go);

}  // namespace gcr::mover
