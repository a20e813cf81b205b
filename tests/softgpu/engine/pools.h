// Stream-ordered memory. It exists from its allocation until the GPU has passed its free; an
// allocation of a graph, in a capture, exists from then on.
#pragma once

#include "tests/softgpu/engine/process.h"

namespace gcr::softgpu {

/// The addresses that the plain and the stream-ordered free accept.
inline constexpr unsigned kFreeable = bit(RangeKind::kDriver) | bit(RangeKind::kPool) |
                                      bit(RangeKind::kGraph) | bit(RangeKind::kManaged);

/// `pool` null: the current one of the context's device.
Result allocate_in_stream(Process& process, Context& context, Stream& stream, std::uint64_t bytes,
                          const void* pool, std::uintptr_t* address);
Result free_in_stream(Process& process, Stream& stream, std::uintptr_t address);

std::shared_ptr<MemoryPool> create_pool(Process& process, int ordinal);
/// kInvalidValue for a default pool.
Result destroy_pool(Process& process, const void* handle);
Result set_current_pool(Process& process, int ordinal, const void* handle);

/// An attribute of a pool, with both interfaces' numbers.
enum class PoolAttribute {
  kReuseFollowEventDependencies = 1,
  kReuseAllowOpportunistic = 2,
  kReuseAllowInternalDependencies = 3,
  kReleaseThreshold = 4,
  kReservedCurrent = 5,
  kReservedHigh = 6,
  kUsedCurrent = 7,
  kUsedHigh = 8,
};
/// `value` is an int for the first three, else 64 bits.
Result set_pool_attribute(Process& process, const void* handle, PoolAttribute what,
                          const void* value);
Result get_pool_attribute(Process& process, const void* handle, PoolAttribute what, void* value);

}  // namespace gcr::softgpu
