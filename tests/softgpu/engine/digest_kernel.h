// The mover's kernel (migrate-agent/gpu/digest/digest_kernel.cu) on the CPU.
#pragma once

#include "tests/softgpu/engine/kernels.h"

namespace gcr::softgpu {

/// gcr_digest_chunks: large launches run on several cores.
Result digest_chunks(const Launch& launch);

}  // namespace gcr::softgpu
