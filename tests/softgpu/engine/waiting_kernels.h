// The kernels of tests/apps/kernels.cu that wait for another process's writes.
#pragma once

#include "tests/softgpu/engine/kernels.h"

namespace gcr::softgpu {

Result wait_for_word(const Launch& launch);
Result ring_pass(const Launch& launch);

}  // namespace gcr::softgpu
