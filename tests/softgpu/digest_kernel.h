// The mover's kernel (migrate-agent/digest/digest_kernel.cu) on the CPU.
#pragma once

#include "tests/softgpu/kernels.h"

namespace gcr::softgpu {

/// gcr_digest_chunks: large launches run on several cores.
CUresult digest_chunks(const Launch& launch);

}  // namespace gcr::softgpu
