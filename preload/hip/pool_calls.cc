// Stream-ordered allocation, calls on pools, and calls that wait: see preload/memory/pool_calls.h.
#include "preload/memory/pool_calls.h"

#include <cstring>

#include "preload/hip/face.h"
#include "preload/hip/real_hip.h"
#include "preload/hip/tracked.h"
#include "preload/memory/pools.h"

namespace gcr::preload {
namespace {

constexpr PoolAttribute neutral(hipMemPoolAttr attribute) {
  return static_cast<PoolAttribute>(attribute);
}
static_assert(neutral(hipMemPoolReuseAllowOpportunistic) ==
              PoolAttribute::kReuseAllowOpportunistic);
static_assert(neutral(hipMemPoolReuseAllowInternalDependencies) ==
              PoolAttribute::kReuseAllowInternalDependencies);
static_assert(neutral(hipMemPoolAttrReleaseThreshold) == PoolAttribute::kReleaseThreshold);
static_assert(neutral(hipMemPoolAttrReservedMemCurrent) == PoolAttribute::kReservedCurrent);
static_assert(neutral(hipMemPoolAttrReservedMemHigh) == PoolAttribute::kReservedHigh);
static_assert(neutral(hipMemPoolAttrUsedMemCurrent) == PoolAttribute::kUsedCurrent);
static_assert(neutral(hipMemPoolAttrUsedMemHigh) == PoolAttribute::kUsedHigh);

/// Allocates from `pool`; `driver` is the application's call, which allocates into `*pointer`.
hipError_t allocate(void** pointer, std::size_t size, hipMemPool_t pool, hipStream_t stream,
                    FunctionRef<hipError_t()> driver) {
  if (pointer == nullptr || size == 0) return driver();
  Address address = 0;
  const Result result =
      allocate_async(hip(), &address, size, from_hip(pool), from_hip(stream), [&] {
        const hipError_t allocated = driver();
        if (allocated == hipSuccess) address = address_of(*pointer);
        return from_hip(allocated);
      });
  if (result == Result::kSuccess) *pointer = pointer_to(address);
  return to_hip(result);
}

hipError_t stream_waited(hipError_t result, hipStream_t stream, std::uint64_t before) {
  if (result == hipSuccess && before != 0) note_stream_waited(hip(), from_hip(stream), before);
  return result;
}

hipError_t device_waited(hipError_t result, std::uint64_t before) {
  if (result == hipSuccess && before != 0) note_context_waited(hip(), nullptr, before);
  return result;
}

/// Notes that the application waited for something other than a stream or context.
hipError_t waited(hipError_t result) {
  if (result == hipSuccess && frees(hip()) != 0) note_event_waited(hip());
  return result;
}

hipError_t pools_changed(hipError_t result) {
  current_pools_changed(hip());
  return result;
}

hipError_t pool_shared(hipError_t result) {
  if (result == hipSuccess) note_unrestorable_pool(hip());
  return result;
}

}  // namespace

namespace hip_calls {

hipError_t hipMallocAsync(void** dev_ptr, std::size_t size, hipStream_t stream) {
  return allocate(dev_ptr, size, nullptr, stream,
                  [&] { return real::hipMallocAsync(dev_ptr, size, stream); });
}

hipError_t hipMallocFromPoolAsync(void** dev_ptr, std::size_t size, hipMemPool_t mem_pool,
                                  hipStream_t stream) {
  const auto real_call = [&] {
    return real::hipMallocFromPoolAsync(dev_ptr, size, mem_pool, stream);
  };
  if (mem_pool == nullptr) return real_call();
  return allocate(dev_ptr, size, mem_pool, stream, real_call);
}

hipError_t hipFreeAsync(void* dev_ptr, hipStream_t stream) {
  return to_hip(free_async(hip(), address_of(dev_ptr), from_hip(stream),
                           [&] { return real::hipFreeAsync(dev_ptr, stream); }));
}

hipError_t hipMemPoolCreate(hipMemPool_t* mem_pool, const hipMemPoolProps* pool_props) {
  const hipError_t result = real::hipMemPoolCreate(mem_pool, pool_props);
  if (result != hipSuccess) return result;
  PoolWanted wanted;
  if (pool_props->location.type == hipMemLocationTypeDevice &&
      pool_props->allocType == hipMemAllocationTypePinned) {
    wanted.device = pool_props->location.id;
  }
  wanted.plain = pool_props->handleTypes == hipMemHandleTypeNone;
  if (hip_release() >= kRelease6_2) {
    std::memcpy(&wanted.most_bytes, pool_props->reserved, sizeof(wanted.most_bytes));
  }
  note_pool(hip(), from_hip(*mem_pool), wanted);
  return result;
}

hipError_t hipMemPoolExportToShareableHandle(void* shared_handle, hipMemPool_t mem_pool,
                                             hipMemAllocationHandleType handle_type,
                                             unsigned int flags) {
  return pool_shared(
      real::hipMemPoolExportToShareableHandle(shared_handle, mem_pool, handle_type, flags));
}

hipError_t hipMemPoolImportFromShareableHandle(hipMemPool_t* mem_pool, void* shared_handle,
                                               hipMemAllocationHandleType handle_type,
                                               unsigned int flags) {
  return pool_shared(
      real::hipMemPoolImportFromShareableHandle(mem_pool, shared_handle, handle_type, flags));
}

hipError_t hipMemPoolDestroy(hipMemPool_t mem_pool) {
  return to_hip(
      destroy_pool(hip(), from_hip(mem_pool), [&] { return real::hipMemPoolDestroy(mem_pool); }));
}

hipError_t hipMemPoolTrimTo(hipMemPool_t mem_pool, std::size_t min_bytes_to_hold) {
  const hipError_t result = real::hipMemPoolTrimTo(mem_pool, min_bytes_to_hold);
  if (result == hipSuccess) trim_pool(hip(), from_hip(mem_pool), min_bytes_to_hold);
  return result;
}

hipError_t hipMemPoolSetAttribute(hipMemPool_t mem_pool, hipMemPoolAttr attr, void* value) {
  const hipError_t result = real::hipMemPoolSetAttribute(mem_pool, attr, value);
  if (result == hipSuccess) attribute_was_set(hip(), from_hip(mem_pool), neutral(attr), value);
  return result;
}

hipError_t hipMemPoolGetAttribute(hipMemPool_t mem_pool, hipMemPoolAttr attr, void* value) {
  const hipError_t result = real::hipMemPoolGetAttribute(mem_pool, attr, value);
  if (result == hipSuccess) add_to_attribute(hip(), from_hip(mem_pool), neutral(attr), value);
  return result;
}

hipError_t hipMemPoolSetAccess(hipMemPool_t mem_pool, const hipMemAccessDesc* desc_list,
                               std::size_t count) {
  const hipError_t result = real::hipMemPoolSetAccess(mem_pool, desc_list, count);
  if (result != hipSuccess) return result;
  return to_hip(set_pool_access(hip(), from_hip(mem_pool), count,
                                [&](std::size_t i) { return from_hip(desc_list[i]); }));
}

hipError_t hipDeviceSetMemPool(int device, hipMemPool_t mem_pool) {
  return pools_changed(real::hipDeviceSetMemPool(device, mem_pool));
}

hipError_t hipMemSetMemPool(hipMemLocation* location, hipMemAllocationType type,
                            hipMemPool_t pool) {
  return pools_changed(real::hipMemSetMemPool(location, type, pool));
}

hipError_t hipGraphAddMemAllocNode(hipGraphNode_t* graph_node, hipGraph_t graph,
                                   const hipGraphNode_t* dependencies, std::size_t num_dependencies,
                                   hipMemAllocNodeParams* node_params) {
  const hipError_t result =
      real::hipGraphAddMemAllocNode(graph_node, graph, dependencies, num_dependencies, node_params);
  if (result == hipSuccess) note_graph_memory(hip());
  return result;
}

hipError_t hipGraphAddNode(hipGraphNode_t* graph_node, hipGraph_t graph,
                           const hipGraphNode_t* dependencies, std::size_t num_dependencies,
                           hipGraphNodeParams* node_params) {
  const hipError_t result =
      real::hipGraphAddNode(graph_node, graph, dependencies, num_dependencies, node_params);
  if (result == hipSuccess && node_params != nullptr &&
      node_params->type == hipGraphNodeTypeMemAllocR0503) {
    note_graph_memory(hip());
  }
  return result;
}

hipError_t hipDeviceSynchronize() {
  const std::uint64_t before = frees(hip());
  return device_waited(real::hipDeviceSynchronize(), before);
}

hipError_t hipCtxSynchronize() {
  const std::uint64_t before = frees(hip());
  return device_waited(real::hipCtxSynchronize(), before);
}

hipError_t hipExecutionCtxSynchronize(hipExecutionCtx_t ctx) {
  return waited(real::hipExecutionCtxSynchronize(ctx));
}

hipError_t hipStreamSynchronize(hipStream_t stream) {
  const std::uint64_t before = frees(hip());
  return stream_waited(real::hipStreamSynchronize(stream), stream, before);
}

hipError_t hipStreamSynchronize_spt(hipStream_t stream) {
  const std::uint64_t before = frees(hip());
  return stream_waited(real::hipStreamSynchronize_spt(stream), of_thread(stream), before);
}

hipError_t hipEventSynchronize(hipEvent_t event) {
  return waited(real::hipEventSynchronize(event));
}

}  // namespace hip_calls
}  // namespace gcr::preload
