#include "preload/memory/stack_limits.h"

#include <algorithm>

#include "preload/memory/contexts.h"

namespace gcr::preload {
namespace {

/// The smallest value that the driver of CUDA 13 accepts unchanged.
constexpr std::size_t kLowestBytes = 16;

/// Lowers the limit of one primary context. Skips contexts that the program created, and contexts
/// with blocking waits: the driver sets a limit when one of its threads reports the context as
/// idle, and at the destination those threads are stopped, so an attach with such contexts did not
/// return.
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
  // Its failure is ignored: without memory for it, few programs depend on the limit.
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
