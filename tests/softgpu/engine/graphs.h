// Stream capture and graphs. A graph's nodes run in the order in which they were added, which
// respects every dependency, as one unit of work of the stream that it is launched into.
#pragma once

#include "tests/softgpu/engine/process.h"

namespace gcr::softgpu {

/// `stream` null: kStreamCaptureUnsupported, as for the legacy stream.
Result begin_capture(Process& process, const std::shared_ptr<Stream>& stream, CaptureMode mode);
/// `graph` receives the handle of the captured graph; null if the capture failed.
Result end_capture(Process& process, Stream& stream, const Graph** graph);

/// Adds a node at the end; null if there is no such graph.
const GraphNode* add_node(Process& process, const void* graph, Operation operation);
/// A runnable copy; null if there is no such graph.
std::shared_ptr<GraphExec> instantiate(Process& process, const void* graph);
Result launch_graph(Process& process, const void* exec, Stream& stream);
/// The handles of up to `*count` nodes; null: `count` receives how many there are.
Result nodes_of_graph(Process& process, const void* graph, void** nodes, std::size_t* count);

}  // namespace gcr::softgpu
