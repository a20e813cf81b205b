#include "preload/cuda/stack_limits.h"

#include <algorithm>

#include "preload/cuda/contexts.h"
#include "preload/cuda/driver_calls.h"

namespace gcr::preload {
namespace {

/// The least value that the driver of CUDA 13 accepts unchanged.
constexpr std::size_t kLowestBytes = 16;

void lower(KnownContext& known) {
  const CurrentContext current(known.context);
  std::size_t bytes = 0;
  if (known.stack_limit_bytes != 0 || current.result() != CUDA_SUCCESS ||
      real::cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE) != CUDA_SUCCESS || bytes <= kLowestBytes) {
    return;
  }
  if (real::cuCtxSetLimit(CU_LIMIT_STACK_SIZE, kLowestBytes) == CUDA_SUCCESS) {
    known.stack_limit_bytes = bytes;
  }
}

CUresult put_back(KnownContext& known) {
  if (known.stack_limit_bytes == 0) return CUDA_SUCCESS;
  const CurrentContext current(known.context);
  if (current.result() != CUDA_SUCCESS) return current.result();
  const CUresult result = real::cuCtxSetLimit(CU_LIMIT_STACK_SIZE, known.stack_limit_bytes);
  if (result == CUDA_SUCCESS) known.stack_limit_bytes = 0;
  return result;
}

}  // namespace

void lower_stack_limits(ProcessState& state) {
  for (KnownContext& known : state.contexts) lower(known);
}

CUresult restore_stack_limits(ProcessState& state) {
  for (KnownContext& known : state.contexts) {
    if (const CUresult result = put_back(known); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

std::uint32_t lowered_stack_limits(const ProcessState& state) {
  return static_cast<std::uint32_t>(
      std::count_if(state.contexts.begin(), state.contexts.end(),
                    [](const KnownContext& known) { return known.stack_limit_bytes != 0; }));
}

}  // namespace gcr::preload
