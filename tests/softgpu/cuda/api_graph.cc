// Stream capture and graphs.
#include "tests/softgpu/cuda/launch.h"
#include "tests/softgpu/cuda/stream_api.h"
#include "tests/softgpu/engine/graphs.h"

namespace gcr::softgpu {
namespace {

CUresult begin_capture_in(DefaultStream flavour, CUstream handle, CUstreamCaptureMode mode) {
  return call_in_context([&](Process& process, Context& context) {
    return begin_capture(process, resolve_stream(process, context, handle, flavour),
                         static_cast<CaptureMode>(mode));
  });
}

CUresult end_capture_in(DefaultStream flavour, CUstream handle, CUgraph* graph) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    const auto stream = resolve_stream(process, context, handle, flavour);
    if (!stream || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Graph* captured = nullptr;
    const CUresult result = end_capture(process, *stream, &captured);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) {
      *graph = reinterpret_cast<CUgraph>(const_cast<Graph*>(captured));
    }
    return result;
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

CUresult add(Process& process, CUgraphNode* node, CUgraph graph, Operation operation) {
  const GraphNode* fresh = add_node(process, graph, std::move(operation));
  if (fresh == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (node != nullptr) *node = reinterpret_cast<CUgraphNode>(const_cast<GraphNode*>(fresh));
  return CUDA_SUCCESS;
}

CUresult instantiate_graph(CUgraphExec* handle, CUgraph graph) {
  return call_in_context([&](Process& process, Context&) -> CUresult {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto exec = instantiate(process, graph);
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    *handle = reinterpret_cast<CUgraphExec>(exec.get());
    return CUDA_SUCCESS;
  });
}

CUresult instantiate_with_params(DefaultStream, CUgraphExec* handle, CUgraph graph,
                                 CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  const CUresult result = instantiate_graph(handle, graph);
  params->result_out =
      result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

CUresult launch_graph_in(DefaultStream flavour, CUgraphExec exec, CUstream handle) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    const auto stream = resolve_stream(process, context, handle, flavour);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    return launch_graph(process, exec, *stream);
  });
}

CUresult upload_graph(DefaultStream, CUgraphExec handle, CUstream) {
  return call([&](Process& process) {
    return process.graph_execs.get(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

}  // namespace

SOFTGPU_BOTH(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz, begin_capture_in,
             (CUstream stream, CUstreamCaptureMode mode), stream, mode)
SOFTGPU_BOTH(cuStreamEndCapture, cuStreamEndCapture_ptsz, end_capture_in,
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
SOFTGPU_BOTH(cuGraphLaunch, cuGraphLaunch_ptsz, launch_graph_in,
             (CUgraphExec exec, CUstream stream), exec, stream)
SOFTGPU_BOTH(cuGraphUpload, cuGraphUpload_ptsz, upload_graph, (CUgraphExec exec, CUstream stream),
             exec, stream)

SOFTGPU_API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return call([&](Process&) {
    if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *mode =
        static_cast<CUstreamCaptureMode>(exchange_capture_mode(static_cast<CaptureMode>(*mode)));
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
  return instantiate_graph(exec, graph);
}

SOFTGPU_API cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode*, char*,
                                  std::size_t) {
  return instantiate_graph(exec, graph);
}

SOFTGPU_API cuGraphExecDestroy(CUgraphExec exec) {
  return call([&](Process& process) {
    return process.graph_execs.take(exec) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

SOFTGPU_API cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, std::size_t* count) {
  return call([&](Process& process) {
    return nodes_of_graph(process, graph, reinterpret_cast<void**>(nodes), count);
  });
}

SOFTGPU_API cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  return call([&](Process&) {
    if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *type = static_cast<CUgraphNodeType>(reinterpret_cast<GraphNode*>(node)->operation.type);
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
    return add(process, node, graph, std::move(operation));
  });
}

SOFTGPU_API cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode*, std::size_t,
                               const CUDA_HOST_NODE_PARAMS* params) {
  return call([&](Process& process) {
    return add(process, node, graph, {NodeType::kHost, [fn = params->fn, data = params->userData] {
                                        fn(data);
                                        return CUDA_SUCCESS;
                                      }});
  });
}

SOFTGPU_API cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode*, std::size_t) {
  return call([&](Process& process) {
    return add(process, node, graph, {NodeType::kEmpty, [] { return CUDA_SUCCESS; }});
  });
}

}  // namespace gcr::softgpu
