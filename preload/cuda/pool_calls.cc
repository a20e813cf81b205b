// Stream-ordered allocation, the pools' calls, and the calls that wait: see pools.h.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>

#include "preload/cuda/backing.h"
#include "preload/cuda/driver_calls.h"
#include "preload/cuda/pools.h"
#include "preload/cuda/process_state.h"
#include "preload/cuda/tracked.h"

namespace gcr::preload {
namespace {

/// The stream that a function means which takes null for the calling thread's own.
CUstream of_thread(CUstream stream) { return stream == nullptr ? CU_STREAM_PER_THREAD : stream; }

void note_graph_memory() {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  s.pools.any_graph_memory = true;
}

/// After a node was added. Its parameters begin with its type.
CUresult node_added(CUresult result, const CUgraphNodeParams* parameters) {
  CUgraphNodeType type{};
  if (result != CUDA_SUCCESS || parameters == nullptr) return result;
  std::memcpy(&type, parameters, sizeof(type));
  if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) note_graph_memory();
  return result;
}

bool is_captured(CUstream stream) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  return refuse_captured(s, stream) != CUDA_SUCCESS;
}

/// `pool` is null for the current one. What a graph allocates is not noted: its memory comes and
/// goes with launches, and the driver says how much it is.
template <class RealCall>
CUresult allocate(CUdeviceptr* address, std::size_t size_bytes, CUmemoryPool pool, CUstream stream,
                  const RealCall& real_call) {
  if (const auto done = allocate_in_order(address, size_bytes, pool, stream)) return *done;
  const CUresult result = real_call();
  if (result != CUDA_SUCCESS) return result;
  if (is_captured(stream)) {
    note_graph_memory();
  } else {
    note_driver_allocation(*address, size_bytes, false);
  }
  return result;
}

/// cuMemFreeAsync of what cuMemAlloc gave: it goes once the stream is past this point. Nothing if
/// the address is not backed.
std::optional<CUresult> free_later(CUdeviceptr address, CUstream stream) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  Mapping* mapping = s.inventory.find_mapping(address);
  if (mapping == nullptr || !is_backed(s, *mapping, address)) return std::nullopt;
  if (const CUresult captured = refuse_captured(s, stream); captured != CUDA_SUCCESS) {
    return captured;
  }
  CUevent done = nullptr;
  CUresult result = real::cuEventCreate(&done, CU_EVENT_DISABLE_TIMING);
  if (result != CUDA_SUCCESS) return result;
  result = real::cuEventRecord(done, stream);
  if (result != CUDA_SUCCESS) {
    real::cuEventDestroy_v2(done);
    return result;
  }
  s.deferred_frees.push_back({take_plain(s, *mapping, address), done});
  return CUDA_SUCCESS;
}

template <class RealCall>
CUresult free_async(CUdeviceptr address, CUstream stream, const RealCall& real_call) {
  if (const auto done = free_in_order(address, stream)) return *done;
  if (const auto done = free_later(address, stream)) return *done;
  const CUresult result = real_call();
  if (result == CUDA_SUCCESS && !is_captured(stream)) {
    ProcessState& s = state();
    const std::lock_guard lock(s.mutex);
    s.inventory.remove_untracked(address);
  }
  return result;
}

/// Frees so far, before a call that waits.
std::uint64_t frees() { return state().pools.tickets.load(std::memory_order_relaxed); }

CUresult stream_waited(CUresult result, CUstream stream, std::uint64_t frees) {
  if (result == CUDA_SUCCESS && frees != 0) note_stream_waited(stream, frees);
  return result;
}

/// The current pools may be others now.
CUresult current_pools_changed(CUresult result) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  std::ranges::fill(s.pools.current, nullptr);
  return result;
}

template <class T>
void add_to(void* value, T more) {
  *static_cast<T*>(value) += more;
}

}  // namespace

namespace tracked {

CUresult cuMemAllocAsync(CUdeviceptr* address, std::size_t size_bytes, CUstream stream) {
  return allocate(address, size_bytes, nullptr, stream,
                  [&] { return real::cuMemAllocAsync(address, size_bytes, stream); });
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, std::size_t size_bytes, CUstream stream) {
  return allocate(address, size_bytes, nullptr, of_thread(stream),
                  [&] { return real::cuMemAllocAsync_ptsz(address, size_bytes, stream); });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t size_bytes, CUmemoryPool pool,
                                 CUstream stream) {
  const auto real_call = [&] {
    return real::cuMemAllocFromPoolAsync(address, size_bytes, pool, stream);
  };
  if (pool == nullptr) return real_call();
  return allocate(address, size_bytes, pool, stream, real_call);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, std::size_t size_bytes,
                                      CUmemoryPool pool, CUstream stream) {
  const auto real_call = [&] {
    return real::cuMemAllocFromPoolAsync_ptsz(address, size_bytes, pool, stream);
  };
  if (pool == nullptr) return real_call();
  return allocate(address, size_bytes, pool, of_thread(stream), real_call);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return free_async(address, stream, [&] { return real::cuMemFreeAsync(address, stream); });
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return free_async(address, of_thread(stream),
                    [&] { return real::cuMemFreeAsync_ptsz(address, stream); });
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  const CUresult result = real::cuMemPoolCreate(pool, properties);
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the driver refuses null
  if (result == CUDA_SUCCESS) note_pool(*pool, *properties);
  return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  // The driver may give a new pool the same handle at once.
  Pool* const known = forget_pool(pool);
  const CUresult result = real::cuMemPoolDestroy(pool);
  if (known != nullptr) end_pool(*known, result == CUDA_SUCCESS ? nullptr : pool);
  return current_pools_changed(result);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, std::size_t bytes_to_keep) {
  const CUresult result = real::cuMemPoolTrimTo(pool, bytes_to_keep);
  if (result != CUDA_SUCCESS) return result;
  if (Pool* const known = pool_of(pool)) trim(*known, bytes_to_keep);
  return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  const CUresult result = real::cuMemPoolSetAttribute(pool, attribute, value);
  Pool* const known = result == CUDA_SUCCESS ? pool_of(pool) : nullptr;
  if (known == nullptr) return result;
  const std::lock_guard lock(state().mutex);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      known->opportunistic = *static_cast<const int*>(value) != 0;
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      known->internal_dependencies = *static_cast<const int*>(value) != 0;
      break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      known->threshold_bytes = *static_cast<const cuuint64_t*>(value);
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      known->most_reserved_bytes = known->reserved_bytes;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      known->most_used_bytes = known->used_bytes;
      break;
    default:
      break;
  }
  return result;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  const CUresult result = real::cuMemPoolGetAttribute(pool, attribute, value);
  const Pool* const known = result == CUDA_SUCCESS ? pool_of(pool) : nullptr;
  if (known == nullptr) return result;
  const std::lock_guard lock(state().mutex);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      add_to<cuuint64_t>(value, known->reserved_bytes);
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      add_to<cuuint64_t>(value, known->most_reserved_bytes);
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      add_to<cuuint64_t>(value, known->used_bytes);
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      add_to<cuuint64_t>(value, known->most_used_bytes);
      break;
    default:
      break;
  }
  return result;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* access, std::size_t count) {
  const CUresult result = real::cuMemPoolSetAccess(pool, access, count);
  Pool* const known = result == CUDA_SUCCESS ? pool_of(pool) : nullptr;
  return known == nullptr ? result : set_access(*known, {access, count});
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  return current_pools_changed(real::cuDeviceSetMemPool(device, pool));
}

CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  return current_pools_changed(real::cuMemSetMemPool(location, type, pool));
}

CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                std::size_t count, CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  const CUresult result =
      real::cuGraphAddMemAllocNode(node, graph, dependencies, count, parameters);
  if (result == CUDA_SUCCESS) note_graph_memory();
  return result;
}

CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                        std::size_t count, CUgraphNodeParams* parameters) {
  return node_added(real::cuGraphAddNode(node, graph, dependencies, count, parameters), parameters);
}

CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                           const CUgraphEdgeData* edges, std::size_t count,
                           CUgraphNodeParams* parameters) {
  return node_added(real::cuGraphAddNode_v2(node, graph, dependencies, edges, count, parameters),
                    parameters);
}

CUresult cuStreamSynchronize(CUstream stream) {
  const std::uint64_t before = frees();
  return stream_waited(real::cuStreamSynchronize(stream), stream, before);
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  const std::uint64_t before = frees();
  return stream_waited(real::cuStreamSynchronize_ptsz(stream), of_thread(stream), before);
}

CUresult cuCtxSynchronize() {
  const std::uint64_t before = frees();
  const CUresult result = real::cuCtxSynchronize();
  if (result == CUDA_SUCCESS && before != 0) note_context_waited(before);
  return result;
}

CUresult cuEventSynchronize(CUevent event) {
  const CUresult result = real::cuEventSynchronize(event);
  if (result == CUDA_SUCCESS && frees() != 0) note_event_waited();
  return result;
}

}  // namespace tracked
}  // namespace gcr::preload
