// Stream capture and graphs. A graph's nodes run in the order in which they were added, which
// respects every dependency, as one piece of work of the stream that it is launched into.
#include <algorithm>
#include <cstring>

#include "tests/softgpu/process.h"
#include "tests/softgpu/stream_api.h"

namespace gcr::softgpu {
namespace {

CUresult begin_capture(DefaultStream flavour, CUstream handle, CUstreamCaptureMode mode) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    const auto stream = resolve_stream(process, context, handle, flavour);
    if (!stream || stream->kind == StreamKind::kLegacy) {
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    auto capture = std::make_shared<Capture>();
    capture->graph = std::make_shared<Graph>();
    capture->origin = stream.get();
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->id = process.next_id++;
    std::lock_guard lock(stream->context->mutex);
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    stream->capture = std::move(capture);
    ++process.captures;
    return CUDA_SUCCESS;
  });
}

CUresult end_capture(DefaultStream flavour, CUstream handle, CUgraph* graph) {
  return call_in_context([&](Process& process, Context& current) -> CUresult {
    const auto stream = resolve_stream(process, current, handle, flavour);
    if (!stream || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Context& context = *stream->context;
    std::lock_guard lock(context.mutex);
    const auto capture = stream->capture;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream.get()) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
        capture->thread != std::this_thread::get_id()) {
      return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    for (const auto& other : context.created) {
      if (other->capture == capture) other->capture.reset();
    }
    stream->capture.reset();
    --process.captures;
    *graph = nullptr;
    if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    *graph = reinterpret_cast<CUgraph>(process.graphs.add(capture->graph).get());
    return CUDA_SUCCESS;
  });
}

CUstreamCaptureStatus status_of(const std::shared_ptr<Capture>& capture) {
  if (!capture) return CU_STREAM_CAPTURE_STATUS_NONE;
  return capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                              : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult capture_info(DefaultStream flavour, CUstream handle, CUstreamCaptureStatus* status,
                      cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
                      std::size_t* count) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    const auto stream = resolve_stream(process, context, handle, flavour);
    if (!stream || status == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(stream->context->mutex);
    *status = status_of(stream->capture);
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
    if (id != nullptr) *id = stream->capture->id;
    if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(stream->capture->graph.get());
    if (dependencies != nullptr) *dependencies = nullptr;
    if (count != nullptr) *count = 0;
    return CUDA_SUCCESS;
  });
}

CUresult capture_info_with_edges(DefaultStream flavour, CUstream handle,
                                 CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                 const CUgraphNode** dependencies, const CUgraphEdgeData** edges,
                                 std::size_t* count) {
  if (edges != nullptr) *edges = nullptr;
  return capture_info(flavour, handle, status, id, graph, dependencies, count);
}

CUresult is_capturing(DefaultStream flavour, CUstream handle, CUstreamCaptureStatus* status) {
  return capture_info(flavour, handle, status, nullptr, nullptr, nullptr, nullptr);
}

CUresult add_node(Process& process, CUgraphNode* node, CUgraph handle, Operation operation) {
  const auto graph = process.graphs.get(handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  auto fresh = std::make_shared<GraphNode>(GraphNode{std::move(operation)});
  if (node != nullptr) *node = reinterpret_cast<CUgraphNode>(fresh.get());
  std::lock_guard lock(graph->mutex);
  graph->nodes.push_back(std::move(fresh));
  return CUDA_SUCCESS;
}

CUresult instantiate(CUgraphExec* handle, CUgraph graph_handle) {
  return call_in_context([&](Process& process, Context&) -> CUresult {
    const auto graph = process.graphs.get(graph_handle);
    if (!graph || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto exec = std::make_shared<GraphExec>();
    {
      std::lock_guard lock(graph->mutex);
      exec->nodes = graph->nodes;
    }
    *handle = reinterpret_cast<CUgraphExec>(process.graph_execs.add(std::move(exec)).get());
    return CUDA_SUCCESS;
  });
}

CUresult instantiate_with_params(DefaultStream, CUgraphExec* handle, CUgraph graph,
                                 CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  const CUresult result = instantiate(handle, graph);
  params->result_out =
      result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

CUresult launch_graph(DefaultStream flavour, CUgraphExec handle, CUstream stream_handle) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    const auto stream = resolve_stream(process, context, stream_handle, flavour);
    const auto exec = process.graph_execs.get(handle);
    if (!stream || !exec) return CUDA_ERROR_INVALID_HANDLE;
    return stream->context->submit(
        *stream, {CU_GRAPH_NODE_TYPE_GRAPH, [exec, next = std::size_t{0}]() mutable {
                    for (; next < exec->nodes.size(); ++next) {
                      const CUresult result = exec->nodes[next]->operation.run();
                      if (result != CUDA_SUCCESS) return result;
                    }
                    return CUDA_SUCCESS;
                  }});
  });
}

CUresult upload_graph(DefaultStream, CUgraphExec handle, CUstream) {
  return call([&](Process& process) {
    return process.graph_execs.get(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

}  // namespace

SOFTGPU_BOTH(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz, begin_capture,
             (CUstream stream, CUstreamCaptureMode mode), stream, mode)
SOFTGPU_BOTH(cuStreamEndCapture, cuStreamEndCapture_ptsz, end_capture,
             (CUstream stream, CUgraph* graph), stream, graph)
SOFTGPU_BOTH(cuStreamIsCapturing, cuStreamIsCapturing_ptsz, is_capturing,
             (CUstream stream, CUstreamCaptureStatus* status), stream, status)
SOFTGPU_BOTH(cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz, capture_info,
             (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
              const CUgraphNode** dependencies, std::size_t* count),
             stream, status, id, graph, dependencies, count)
SOFTGPU_BOTH(cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz, capture_info_with_edges,
             (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
              const CUgraphNode** dependencies, const CUgraphEdgeData** edges, std::size_t* count),
             stream, status, id, graph, dependencies, edges, count)
SOFTGPU_BOTH(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz,
             instantiate_with_params,
             (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params), exec,
             graph, params)
SOFTGPU_BOTH(cuGraphLaunch, cuGraphLaunch_ptsz, launch_graph, (CUgraphExec exec, CUstream stream),
             exec, stream)
SOFTGPU_BOTH(cuGraphUpload, cuGraphUpload_ptsz, upload_graph, (CUgraphExec exec, CUstream stream),
             exec, stream)

SOFTGPU_API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return call([&](Process&) {
    if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *mode = exchange_capture_mode(*mode);
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuGraphCreate(CUgraph* graph, unsigned flags) {
  return call([&](Process& process) {
    if (graph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    *graph = reinterpret_cast<CUgraph>(process.graphs.add(std::make_shared<Graph>()).get());
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuGraphDestroy(CUgraph graph) {
  return call([&](Process& process) {
    return process.graphs.take(graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

SOFTGPU_API cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long) {
  return instantiate(exec, graph);
}

SOFTGPU_API cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode*, char*,
                                  std::size_t) {
  return instantiate(exec, graph);
}

SOFTGPU_API cuGraphExecDestroy(CUgraphExec exec) {
  return call([&](Process& process) {
    return process.graph_execs.take(exec) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

SOFTGPU_API cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, std::size_t* count) {
  return call([&](Process& process) {
    const auto graph = process.graphs.get(handle);
    if (!graph || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(graph->mutex);
    const std::size_t total = graph->nodes.size();
    for (std::size_t i = 0; nodes != nullptr && i < std::min(*count, total); ++i) {
      nodes[i] = reinterpret_cast<CUgraphNode>(graph->nodes[i].get());
    }
    *count = nodes != nullptr ? std::min(*count, total) : total;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  return call([&](Process&) {
    if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *type = reinterpret_cast<GraphNode*>(node)->operation.type;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode*,
                                    std::size_t, const CUDA_KERNEL_NODE_PARAMS* params) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    const CUlaunchConfig config{params->gridDimX,
                                params->gridDimY,
                                params->gridDimZ,
                                params->blockDimX,
                                params->blockDimY,
                                params->blockDimZ,
                                params->sharedMemBytes,
                                nullptr,
                                nullptr,
                                0};
    const void* function = params->func != nullptr ? static_cast<const void*>(params->func)
                                                   : static_cast<const void*>(params->kern);
    Operation operation;
    if (const CUresult result = make_launch(process, context, config, function,
                                            params->kernelParams, params->extra, &operation)) {
      return result;
    }
    return add_node(process, node, graph, std::move(operation));
  });
}

SOFTGPU_API cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode*, std::size_t,
                               const CUDA_HOST_NODE_PARAMS* params) {
  return call([&](Process& process) {
    return add_node(process, node, graph,
                    {CU_GRAPH_NODE_TYPE_HOST, [fn = params->fn, data = params->userData] {
                       fn(data);
                       return CUDA_SUCCESS;
                     }});
  });
}

SOFTGPU_API cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode*, std::size_t) {
  return call([&](Process& process) {
    return add_node(process, node, graph, {CU_GRAPH_NODE_TYPE_EMPTY, [] { return CUDA_SUCCESS; }});
  });
}

}  // namespace gcr::softgpu
