#include "preload/memory/stack_limits.h"

#include <algorithm>

#include "preload/memory/contexts.h"

namespace gcr::preload {
namespace {

/// The least value that the driver of CUDA 13 accepts unchanged.
constexpr std::size_t kLowestBytes = 16;

/// Contexts of the program's own stay as they are, and those whose waits block. The driver sets a
/// limit when the context is idle, and at the destination all threads that could tell it so stand
/// still: there an attach in a program with such contexts did not come back.
void lower(Runtime& r, KnownContext& known) {
  if (!known.primary) return;
  const CurrentContext current(r, known.context);
  std::size_t bytes = 0;
  if (known.stack_limit_bytes != 0 || current.result() != Result::kSuccess ||
      r.driver.stack_limit(&bytes) != Result::kSuccess || bytes <= kLowestBytes) {
    return;
  }
  if (r.driver.set_stack_limit(kLowestBytes) == Result::kSuccess) {
    known.stack_limit_bytes = bytes;
  }
}

Result put_back(Runtime& r, KnownContext& known) {
  if (known.stack_limit_bytes == 0) return Result::kSuccess;
  const CurrentContext current(r, known.context);
  if (current.result() != Result::kSuccess) return current.result();
  const Result result = r.driver.set_stack_limit(known.stack_limit_bytes);
  if (result != Result::kSuccess) return result;
  known.stack_limit_bytes = 0;
  // Where there is no memory left for it, few programs depend on it.
  r.driver.settle_stack_limit();
  return Result::kSuccess;
}

}  // namespace

void lower_stack_limits(Runtime& r) {
  for (KnownContext& known : r.contexts) lower(r, known);
}

Result restore_stack_limits(Runtime& r) {
  for (KnownContext& known : r.contexts) {
    if (const Result result = put_back(r, known); result != Result::kSuccess) return result;
  }
  return Result::kSuccess;
}

std::uint32_t lowered_stack_limits(const Runtime& r) {
  return static_cast<std::uint32_t>(
      std::count_if(r.contexts.begin(), r.contexts.end(),
                    [](const KnownContext& known) { return known.stack_limit_bytes != 0; }));
}

}  // namespace gcr::preload
