#include "tests/softgpu/engine/graphs.h"

#include <algorithm>

namespace gcr::softgpu {

Result begin_capture(Process& process, const std::shared_ptr<Stream>& stream, CaptureMode mode) {
  if (!stream || stream->kind == StreamKind::kLegacy) return Result::kStreamCaptureUnsupported;
  auto capture = std::make_shared<Capture>();
  capture->graph = std::make_shared<Graph>();
  capture->origin = stream.get();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->id = process.next_id++;
  std::lock_guard lock(stream->context->mutex);
  if (stream->capture) return Result::kIllegalState;
  stream->capture = std::move(capture);
  ++process.captures;
  return Result::kSuccess;
}

Result end_capture(Process& process, Stream& stream, const Graph** graph) {
  Context& context = *stream.context;
  std::lock_guard lock(context.mutex);
  const auto capture = stream.capture;
  if (!capture) return Result::kIllegalState;
  if (capture->origin != &stream) return Result::kStreamCaptureUnmatched;
  if (capture->mode != CaptureMode::kRelaxed && capture->thread != std::this_thread::get_id()) {
    return Result::kStreamCaptureWrongThread;
  }
  for (const auto& other : context.created) {
    if (other->capture == capture) other->capture.reset();
  }
  stream.capture.reset();
  --process.captures;
  *graph = nullptr;
  if (capture->invalidated) return Result::kStreamCaptureInvalidated;
  *graph = process.graphs.add(capture->graph).get();
  return Result::kSuccess;
}

const GraphNode* add_node(Process& process, const void* handle, Operation operation) {
  const auto graph = process.graphs.get(handle);
  if (!graph) return nullptr;
  auto fresh = std::make_shared<GraphNode>(GraphNode{std::move(operation)});
  std::lock_guard lock(graph->mutex);
  return graph->nodes.emplace_back(std::move(fresh)).get();
}

std::shared_ptr<GraphExec> instantiate(Process& process, const void* handle) {
  const auto graph = process.graphs.get(handle);
  if (!graph) return nullptr;
  auto exec = std::make_shared<GraphExec>();
  {
    std::lock_guard lock(graph->mutex);
    exec->nodes = graph->nodes;
  }
  return process.graph_execs.add(std::move(exec));
}

Result launch_graph(Process& process, const void* handle, Stream& stream) {
  const auto exec = process.graph_execs.get(handle);
  if (!exec) return Result::kInvalidHandle;
  Operation all{NodeType::kGraph, [exec, next = std::size_t{0}]() mutable -> Result {
                  for (; next < exec->nodes.size(); ++next) {
                    if (const Result result = exec->nodes[next]->operation.run()) return result;
                  }
                  return Result::kSuccess;
                }};
  all.kernel =
      std::ranges::any_of(exec->nodes, &Operation::kernel,
                          [](const auto& node) -> const Operation& { return node->operation; });
  return stream.context->submit(stream, std::move(all));
}

Result nodes_of_graph(Process& process, const void* handle, void** nodes, std::size_t* count) {
  const auto graph = process.graphs.get(handle);
  if (!graph || count == nullptr) return Result::kInvalidValue;
  std::lock_guard lock(graph->mutex);
  const std::size_t total = graph->nodes.size();
  for (std::size_t i = 0; nodes != nullptr && i < std::min(*count, total); ++i) {
    nodes[i] = graph->nodes[i].get();
  }
  *count = nodes != nullptr ? std::min(*count, total) : total;
  return Result::kSuccess;
}

}  // namespace gcr::softgpu
