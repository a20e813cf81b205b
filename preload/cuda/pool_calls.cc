// Stream-ordered allocation, calls on pools, and calls that wait: see preload/memory/pool_calls.h.
#include "preload/memory/pool_calls.h"

#include <cstring>

#include "preload/cuda/face.h"
#include "preload/cuda/real_driver.h"
#include "preload/cuda/tracked.h"
#include "preload/memory/pools.h"

namespace gcr::preload {
namespace {

constexpr PoolAttribute neutral(CUmemPool_attribute attribute) {
  return static_cast<PoolAttribute>(attribute);
}
static_assert(neutral(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC) ==
              PoolAttribute::kReuseAllowOpportunistic);
static_assert(neutral(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) ==
              PoolAttribute::kReuseAllowInternalDependencies);
static_assert(neutral(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == PoolAttribute::kReleaseThreshold);
static_assert(neutral(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == PoolAttribute::kReservedCurrent);
static_assert(neutral(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == PoolAttribute::kReservedHigh);
static_assert(neutral(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == PoolAttribute::kUsedCurrent);
static_assert(neutral(CU_MEMPOOL_ATTR_USED_MEM_HIGH) == PoolAttribute::kUsedHigh);

/// Notes a graph node that was added, if it allocates. Its parameters begin with its type.
CUresult node_added(CUresult result, const CUgraphNodeParams* parameters) {
  CUgraphNodeType type{};
  if (result != CUDA_SUCCESS || parameters == nullptr) return result;
  std::memcpy(&type, parameters, sizeof(type));
  if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) note_graph_memory(cuda());
  return result;
}

CUresult allocate(CUdeviceptr* address, std::size_t size_bytes, CUmemoryPool pool, CUstream stream,
                  RealCall driver) {
  return to_cuda(
      allocate_async(cuda(), address, size_bytes, from_cuda(pool), from_cuda(stream), driver));
}

CUresult free_in_stream(CUdeviceptr address, CUstream stream, RealCall driver) {
  return to_cuda(free_async(cuda(), address, from_cuda(stream), driver));
}

CUresult stream_waited(CUresult result, CUstream stream, std::uint64_t before) {
  if (result == CUDA_SUCCESS && before != 0) {
    note_stream_waited(cuda(), from_cuda(stream), before);
  }
  return result;
}

CUresult pools_changed(CUresult result) {
  current_pools_changed(cuda());
  return result;
}

CUresult pool_shared(CUresult result) {
  if (result == CUDA_SUCCESS) note_unrestorable_pool(cuda());
  return result;
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
  return free_in_stream(address, stream, [&] { return real::cuMemFreeAsync(address, stream); });
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return free_in_stream(address, of_thread(stream),
                        [&] { return real::cuMemFreeAsync_ptsz(address, stream); });
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  const CUresult result = real::cuMemPoolCreate(pool, properties);
  if (result != CUDA_SUCCESS) return result;
  PoolWanted wanted;
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the driver refuses null
  if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
      properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED) {
    wanted.device = properties->location.id;
  }
  wanted.plain = properties->handleTypes == CU_MEM_HANDLE_TYPE_NONE && properties->usage == 0;
  wanted.most_bytes = properties->maxSize;
  note_pool(cuda(), from_cuda(*pool), wanted);
  return result;
}

CUresult cuMemPoolExportToShareableHandle(void* handle, CUmemoryPool pool,
                                          CUmemAllocationHandleType type,
                                          unsigned long long flags) {
  return pool_shared(real::cuMemPoolExportToShareableHandle(handle, pool, type, flags));
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* handle,
                                            CUmemAllocationHandleType type,
                                            unsigned long long flags) {
  return pool_shared(real::cuMemPoolImportFromShareableHandle(pool, handle, type, flags));
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  return to_cuda(
      destroy_pool(cuda(), from_cuda(pool), [&] { return real::cuMemPoolDestroy(pool); }));
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, std::size_t bytes_to_keep) {
  const CUresult result = real::cuMemPoolTrimTo(pool, bytes_to_keep);
  if (result == CUDA_SUCCESS) trim_pool(cuda(), from_cuda(pool), bytes_to_keep);
  return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  const CUresult result = real::cuMemPoolSetAttribute(pool, attribute, value);
  if (result == CUDA_SUCCESS) {
    attribute_was_set(cuda(), from_cuda(pool), neutral(attribute), value);
  }
  return result;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  const CUresult result = real::cuMemPoolGetAttribute(pool, attribute, value);
  if (result == CUDA_SUCCESS) {
    add_to_attribute(cuda(), from_cuda(pool), neutral(attribute), value);
  }
  return result;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* access, std::size_t count) {
  const CUresult result = real::cuMemPoolSetAccess(pool, access, count);
  if (result != CUDA_SUCCESS) return result;
  return to_cuda(set_pool_access(cuda(), from_cuda(pool), count,
                                 [&](std::size_t i) { return from_cuda(access[i]); }));
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  return pools_changed(real::cuDeviceSetMemPool(device, pool));
}

CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  return pools_changed(real::cuMemSetMemPool(location, type, pool));
}

CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                std::size_t count, CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  const CUresult result =
      real::cuGraphAddMemAllocNode(node, graph, dependencies, count, parameters);
  if (result == CUDA_SUCCESS) note_graph_memory(cuda());
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
  const std::uint64_t before = frees(cuda());
  return stream_waited(real::cuStreamSynchronize(stream), stream, before);
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  const std::uint64_t before = frees(cuda());
  return stream_waited(real::cuStreamSynchronize_ptsz(stream), of_thread(stream), before);
}

CUresult cuCtxSynchronize() {
  const std::uint64_t before = frees(cuda());
  const CUresult result = real::cuCtxSynchronize();
  if (result == CUDA_SUCCESS && before != 0) note_context_waited(cuda(), nullptr, before);
  return result;
}

CUresult cuCtxSynchronize_v2(CUcontext context) {
  const std::uint64_t before = frees(cuda());
  const CUresult result = real::cuCtxSynchronize_v2(context);
  if (result == CUDA_SUCCESS && before != 0) {
    note_context_waited(cuda(), from_cuda(context), before);
  }
  return result;
}

CUresult cuEventSynchronize(CUevent event) {
  const CUresult result = real::cuEventSynchronize(event);
  if (result == CUDA_SUCCESS && frees(cuda()) != 0) note_event_waited(cuda());
  return result;
}

}  // namespace tracked
}  // namespace gcr::preload
