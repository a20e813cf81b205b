// Stream capture and graphs.
#include <algorithm>
#include <cstring>

#include "tests/softgpu/engine/graphs.h"
#include "tests/softgpu/hip/face.h"
#include "tests/softgpu/hip/launch.h"

namespace gcr::softgpu::hip {
namespace {

using StreamRef = std::shared_ptr<Stream>;

hipError_t begin_capture_in(DefaultStream flavour, hipStream_t handle, hipStreamCaptureMode mode) {
  return call_in_stream(flavour, handle, [&](Process& process, const StreamRef& stream) -> Result {
    if (mode < hipStreamCaptureModeGlobal || mode > hipStreamCaptureModeRelaxed) {
      return Result::kInvalidValue;
    }
    return begin_capture(process, stream, static_cast<CaptureMode>(mode));
  });
}

hipError_t end_capture_in(DefaultStream flavour, hipStream_t handle, hipGraph_t* graph) {
  return call_in_stream(flavour, handle, [&](Process& process, const StreamRef& stream) -> Result {
    if (graph == nullptr) return Result::kInvalidValue;
    const Graph* captured = nullptr;
    const Result result = end_capture(process, *stream, &captured);
    if (!result || result == Result::kStreamCaptureInvalidated) {
      *graph = handle_of<hipGraph_t>(captured);
    }
    return result;
  });
}

hipStreamCaptureStatus status_of(const std::shared_ptr<Capture>& capture) {
  if (!capture) return hipStreamCaptureStatusNone;
  return capture->invalidated ? hipStreamCaptureStatusInvalidated : hipStreamCaptureStatusActive;
}

hipError_t capture_info(DefaultStream flavour, hipStream_t handle, hipStreamCaptureStatus* status,
                        unsigned long long* id, hipGraph_t* graph,
                        const hipGraphNode_t** dependencies, std::size_t* count) {
  return call_in_stream(flavour, handle, [&](Process&, const StreamRef& stream) {
    if (status == nullptr) return hipErrorInvalidValue;
    std::lock_guard lock(stream->context->mutex);
    *status = status_of(stream->capture);
    if (*status != hipStreamCaptureStatusActive) return hipSuccess;
    if (id != nullptr) *id = stream->capture->id;
    if (graph != nullptr) *graph = handle_of<hipGraph_t>(stream->capture->graph.get());
    if (dependencies != nullptr) *dependencies = nullptr;
    if (count != nullptr) *count = 0;
    return hipSuccess;
  });
}

hipError_t short_capture_info(DefaultStream flavour, hipStream_t stream,
                              hipStreamCaptureStatus* status, unsigned long long* id) {
  return capture_info(flavour, stream, status, id, nullptr, nullptr, nullptr);
}

hipError_t is_capturing(DefaultStream flavour, hipStream_t stream, hipStreamCaptureStatus* status) {
  return capture_info(flavour, stream, status, nullptr, nullptr, nullptr, nullptr);
}

Result add(Process& process, hipGraphNode_t* node, hipGraph_t graph, Operation operation) {
  const GraphNode* fresh = add_node(process, graph, std::move(operation));
  if (fresh == nullptr || node == nullptr) return Result::kInvalidValue;
  *node = handle_of<hipGraphNode_t>(fresh);
  return Result::kSuccess;
}

hipError_t instantiate_graph(hipGraphExec_t* handle, hipGraph_t graph) {
  return call([&](Process& process) {
    if (handle == nullptr) return hipErrorInvalidValue;
    const auto exec = instantiate(process, graph);
    if (!exec) return hipErrorInvalidValue;
    *handle = handle_of<hipGraphExec_t>(exec.get());
    return hipSuccess;
  });
}

hipError_t launch_graph_in(DefaultStream flavour, hipGraphExec_t exec, hipStream_t handle) {
  return call_in_stream(flavour, handle, [&](Process& process, const StreamRef& stream) {
    return launch_graph(process, exec, *stream);
  });
}

hipGraphNodeType to_abi(NodeType type) {
  const int number = static_cast<int>(type);
  return static_cast<hipGraphNodeType>(release() < 503 ? number + 1 : number);
}

bool same_nodes(const std::vector<std::shared_ptr<GraphNode>>& one,
                const std::vector<std::shared_ptr<GraphNode>>& other) {
  return std::ranges::equal(one, other, [](const auto& a, const auto& b) {
    return a->operation.type == b->operation.type;
  });
}

}  // namespace

SOFTHIP_BOTH(hipStreamBeginCapture, begin_capture_in,
             (hipStream_t stream, hipStreamCaptureMode mode), stream, mode)
SOFTHIP_BOTH(hipStreamEndCapture, end_capture_in, (hipStream_t stream, hipGraph_t* graph), stream,
             graph)
SOFTHIP_BOTH(hipStreamIsCapturing, is_capturing,
             (hipStream_t stream, hipStreamCaptureStatus* status), stream, status)
SOFTHIP_BOTH(hipStreamGetCaptureInfo, short_capture_info,
             (hipStream_t stream, hipStreamCaptureStatus* status, unsigned long long* id), stream,
             status, id)
SOFTHIP_BOTH(hipStreamGetCaptureInfo_v2, capture_info,
             (hipStream_t stream, hipStreamCaptureStatus* status, unsigned long long* id,
              hipGraph_t* graph, const hipGraphNode_t** dependencies, std::size_t* count),
             stream, status, id, graph, dependencies, count)
SOFTHIP_BOTH(hipGraphLaunch, launch_graph_in, (hipGraphExec_t exec, hipStream_t stream), exec,
             stream)

SOFTHIP_API hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode* mode) {
  return call([&](Process&) {
    if (mode == nullptr) return hipErrorInvalidValue;
    *mode =
        static_cast<hipStreamCaptureMode>(exchange_capture_mode(static_cast<CaptureMode>(*mode)));
    return hipSuccess;
  });
}

SOFTHIP_API hipGraphCreate(hipGraph_t* graph, unsigned flags) {
  return call([&](Process& process) {
    if (graph == nullptr || flags != 0) return hipErrorInvalidValue;
    *graph = handle_of<hipGraph_t>(process.graphs.add(std::make_shared<Graph>()).get());
    return hipSuccess;
  });
}

SOFTHIP_API hipGraphDestroy(hipGraph_t graph) {
  return call([&](Process& process) {
    return process.graphs.take(graph) ? hipSuccess : hipErrorInvalidValue;
  });
}

SOFTHIP_API hipGraphClone(hipGraph_t* clone, hipGraph_t handle) {
  return call([&](Process& process) {
    const auto graph = process.graphs.get(handle);
    if (clone == nullptr || !graph) return hipErrorInvalidValue;
    auto copy = std::make_shared<Graph>();
    std::lock_guard lock(graph->mutex);
    copy->nodes = graph->nodes;
    *clone = handle_of<hipGraph_t>(process.graphs.add(std::move(copy)).get());
    return hipSuccess;
  });
}

SOFTHIP_API hipGraphInstantiate(hipGraphExec_t* exec, hipGraph_t graph, hipGraphNode_t*, char*,
                                std::size_t) {
  return instantiate_graph(exec, graph);
}

SOFTHIP_API hipGraphInstantiateWithFlags(hipGraphExec_t* exec, hipGraph_t graph,
                                         unsigned long long) {
  return instantiate_graph(exec, graph);
}

SOFTHIP_API hipGraphExecDestroy(hipGraphExec_t exec) {
  return call([&](Process& process) {
    return process.graph_execs.take(exec) ? hipSuccess : hipErrorInvalidValue;
  });
}

/// The graph must have the same kinds of nodes.
SOFTHIP_API hipGraphExecUpdate(hipGraphExec_t exec_handle, hipGraph_t graph_handle,
                               hipGraphNode_t* error_node, hipGraphExecUpdateResult* why) {
  return call([&](Process& process) {
    const auto exec = process.graph_execs.get(exec_handle);
    const auto graph = process.graphs.get(graph_handle);
    if (!exec || !graph || why == nullptr) return hipErrorInvalidValue;
    if (error_node != nullptr) *error_node = nullptr;
    std::lock_guard lock(graph->mutex);
    *why = hipGraphExecUpdateErrorTopologyChanged;
    if (!same_nodes(exec->nodes, graph->nodes)) return hipErrorGraphExecUpdateFailure;
    exec->nodes = graph->nodes;
    *why = hipGraphExecUpdateSuccess;
    return hipSuccess;
  });
}

SOFTHIP_API hipGraphUpload(hipGraphExec_t exec, hipStream_t) {
  return call([&](Process& process) {
    return process.graph_execs.get(exec) ? hipSuccess : hipErrorInvalidValue;
  });
}

SOFTHIP_API hipGraphGetNodes(hipGraph_t graph, hipGraphNode_t* nodes, std::size_t* count) {
  return call([&](Process& process) {
    return nodes_of_graph(process, graph, reinterpret_cast<void**>(nodes), count);
  });
}

SOFTHIP_API hipGraphNodeGetType(hipGraphNode_t node, hipGraphNodeType* type) {
  return call([&](Process&) {
    if (node == nullptr || type == nullptr) return hipErrorInvalidValue;
    *type = to_abi(reinterpret_cast<const GraphNode*>(node)->operation.type);
    return hipSuccess;
  });
}

SOFTHIP_API hipGraphAddKernelNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t*,
                                  std::size_t, const hipKernelNodeParams* launch) {
  return call_in_context([&](Process& process, Context& context) -> hipError_t {
    if (launch == nullptr) return hipErrorInvalidValue;
    Operation operation;
    const hipError_t made =
        make_launch(process, context, launch->gridDim, launch->blockDim, launch->func,
                    launch->kernelParams, launch->extra, &operation);
    return made != hipSuccess ? made : to_hip(add(process, node, graph, std::move(operation)));
  });
}

SOFTHIP_API hipGraphAddMemcpyNode1D(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t*,
                                    std::size_t, void* to, const void* from, std::size_t bytes,
                                    hipMemcpyKind) {
  return call([&](Process& process) {
    return add(process, node, graph, {NodeType::kMemcpy, [=] {
                                        std::memmove(to, from, bytes);
                                        return Result::kSuccess;
                                      }});
  });
}

SOFTHIP_API hipGraphAddMemsetNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t*,
                                  std::size_t, const hipMemsetParams* fill) {
  return call([&](Process& process) -> Result {
    if (fill == nullptr ||
        (fill->elementSize != 1 && fill->elementSize != 2 && fill->elementSize != 4)) {
      return Result::kInvalidValue;
    }
    return add(process, node, graph, {NodeType::kMemset, [what = *fill] {
                                        auto* row = static_cast<char*>(what.dst);
                                        for (std::size_t y = 0; y < what.height; ++y) {
                                          for (std::size_t x = 0; x < what.width; ++x) {
                                            std::memcpy(row + x * what.elementSize, &what.value,
                                                        what.elementSize);
                                          }
                                          row += what.pitch;
                                        }
                                        return Result::kSuccess;
                                      }});
  });
}

/// The memory exists from now on, like allocations in a capture.
SOFTHIP_API hipGraphAddMemAllocNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t*,
                                    std::size_t, hipMemAllocNodeParams* memory) {
  return call([&](Process& process) -> Result {
    if (memory == nullptr || !process.devices.has(memory->poolProps.location.id)) {
      return Result::kInvalidValue;
    }
    std::uintptr_t start = 0;
    if (const Result result =
            process.memory.allocate(memory->poolProps.location.id, memory->bytesize, nullptr,
                                    RangeKind::kGraph, nullptr, &start)) {
      return result;
    }
    memory->dptr = pointer_to(start);
    return add(process, node, graph, {NodeType::kMemAlloc, [] { return Result::kSuccess; }});
  });
}

SOFTHIP_API hipGraphAddMemFreeNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t*,
                                   std::size_t, void* address) {
  return call([&](Process& process) -> Result {
    if (process.memory.find(address_of(address)).kind != RangeKind::kGraph) {
      return Result::kInvalidValue;
    }
    return add(process, node, graph, {NodeType::kMemFree, [] { return Result::kSuccess; }});
  });
}

SOFTHIP_API hipGraphAddHostNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t*,
                                std::size_t, const hipHostNodeParams* host) {
  return call([&](Process& process) -> Result {
    if (host == nullptr || host->fn == nullptr) return Result::kInvalidValue;
    return add(process, node, graph, {NodeType::kHost, [fn = host->fn, data = host->userData] {
                                        fn(data);
                                        return Result::kSuccess;
                                      }});
  });
}

SOFTHIP_API hipGraphAddEmptyNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t*,
                                 std::size_t) {
  return call([&](Process& process) {
    return add(process, node, graph, {NodeType::kEmpty, [] { return Result::kSuccess; }});
  });
}

}  // namespace gcr::softgpu::hip
