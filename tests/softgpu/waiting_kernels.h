// The kernels of tests/apps/kernels.ptx that wait for what another process writes.
#pragma once

#include "tests/softgpu/kernels.h"

namespace gcr::softgpu {

CUresult wait_for_word(const Launch& launch);
CUresult ring_pass(const Launch& launch);

}  // namespace gcr::softgpu
