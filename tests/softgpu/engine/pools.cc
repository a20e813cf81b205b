#include "tests/softgpu/engine/pools.h"

#include <algorithm>
#include <cstring>

namespace gcr::softgpu {

Result allocate_in_stream(Process& process, Context& context, Stream& stream, std::uint64_t bytes,
                          const void* pool, std::uintptr_t* address) {
  const auto from =
      pool != nullptr ? process.pools.get(pool) : process.current_pools[context.ordinal];
  if (!from) return Result::kInvalidValue;
  if (stream.captured()) {  // the memory of a graph stays
    if (const Result result = process.memory.allocate(from->ordinal, bytes, nullptr,
                                                      RangeKind::kGraph, nullptr, address)) {
      return result;
    }
    return stream.context->submit(stream, {NodeType::kMemAlloc, [] { return Result::kSuccess; }});
  }
  if (const Result result = process.memory.allocate(from->ordinal, bytes, nullptr, RangeKind::kPool,
                                                    from.get(), address)) {
    return result;
  }
  from->most_used =
      std::max<std::uint64_t>(from->most_used, process.memory.bytes_of_pool(from.get()));
  return Result::kSuccess;
}

Result free_in_stream(Process& process, Stream& stream, std::uintptr_t address) {
  const RangeInfo range = process.memory.find(address);
  if (range.start != address || (bit(range.kind) & kFreeable) == 0 || range.bytes == 0) {
    return Result::kInvalidValue;
  }
  if (stream.captured()) {
    if (range.kind != RangeKind::kGraph) return Result::kInvalidValue;
    return stream.context->submit(stream, {NodeType::kMemFree, [] { return Result::kSuccess; }});
  }
  Memory* memory = &process.memory;
  return stream.context->submit(
      stream, {NodeType::kMemFree, [memory, address] { return memory->free(address, kFreeable); }});
}

std::shared_ptr<MemoryPool> create_pool(Process& process, int ordinal) {
  auto pool = std::make_shared<MemoryPool>();
  pool->ordinal = ordinal;
  return process.pools.add(std::move(pool));
}

Result destroy_pool(Process& process, const void* handle) {
  const auto pool = process.pools.get(handle);
  if (!pool || pool->is_default) return Result::kInvalidValue;
  process.pools.take(handle);
  if (pool->ordinal != kHostOrdinal && process.current_pools[pool->ordinal] == pool) {
    process.current_pools[pool->ordinal] = process.default_pools[pool->ordinal];
  }
  return Result::kSuccess;
}

Result set_current_pool(Process& process, int ordinal, const void* handle) {
  const auto pool = process.pools.get(handle);
  if (!pool || process.devices.at(ordinal) == nullptr || pool->ordinal != ordinal) {
    return Result::kInvalidValue;
  }
  process.current_pools[ordinal] = pool;
  return Result::kSuccess;
}

Result set_pool_attribute(Process& process, const void* handle, PoolAttribute what,
                          const void* value) {
  const auto pool = process.pools.get(handle);
  if (!pool) return Result::kInvalidValue;
  switch (what) {
    case PoolAttribute::kReuseFollowEventDependencies:
    case PoolAttribute::kReuseAllowOpportunistic:
    case PoolAttribute::kReuseAllowInternalDependencies:
      std::memcpy(&pool->reuse[static_cast<int>(what) - 1], value, sizeof(int));
      return Result::kSuccess;
    case PoolAttribute::kReleaseThreshold:
      std::memcpy(&pool->release_threshold, value, sizeof(std::uint64_t));
      return Result::kSuccess;
    case PoolAttribute::kUsedHigh:
    case PoolAttribute::kReservedHigh: {
      std::uint64_t zero = 0;
      std::memcpy(&zero, value, sizeof(zero));
      if (zero != 0) return Result::kInvalidValue;
      pool->most_used = process.memory.bytes_of_pool(handle);
      return Result::kSuccess;
    }
    default:
      return Result::kInvalidValue;
  }
}

Result get_pool_attribute(Process& process, const void* handle, PoolAttribute what, void* value) {
  if (const Result refused = refuse_if_capturing(process)) return refused;
  const auto pool = process.pools.get(handle);
  if (!pool) return Result::kInvalidValue;
  std::uint64_t number = 0;
  switch (what) {
    case PoolAttribute::kReuseFollowEventDependencies:
    case PoolAttribute::kReuseAllowOpportunistic:
    case PoolAttribute::kReuseAllowInternalDependencies:
      std::memcpy(value, &pool->reuse[static_cast<int>(what) - 1], sizeof(int));
      return Result::kSuccess;
    case PoolAttribute::kReleaseThreshold:
      number = pool->release_threshold;
      break;
    case PoolAttribute::kUsedHigh:
    case PoolAttribute::kReservedHigh:
      number = pool->most_used;
      break;
    case PoolAttribute::kUsedCurrent:
    case PoolAttribute::kReservedCurrent:
      number = process.memory.bytes_of_pool(handle);
      break;
    default:
      return Result::kNotSupported;
  }
  std::memcpy(value, &number, sizeof(number));
  return Result::kSuccess;
}

}  // namespace gcr::softgpu
