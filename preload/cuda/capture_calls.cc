// Stream captures, and the destruction of streams.
#include "preload/cuda/face.h"
#include "preload/cuda/real_driver.h"
#include "preload/cuda/tracked.h"
#include "preload/memory/capture.h"
#include "preload/memory/pools.h"

namespace gcr::preload {
namespace {

CUresult began(CUresult result, CUstream stream, bool per_thread) {
  return to_cuda(capture_began(cuda(), from_cuda(result), from_cuda(stream), per_thread));
}

CUresult ended(CUresult result, CUstream stream, bool per_thread) {
  return to_cuda(capture_ended(cuda(), from_cuda(result), from_cuda(stream), per_thread));
}

}  // namespace

namespace tracked {

CUresult cuStreamBeginCapture(CUstream stream) {
  return began(real::cuStreamBeginCapture(stream), stream, false);
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  return began(real::cuStreamBeginCapture_ptsz(stream), stream, true);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return began(real::cuStreamBeginCapture_v2(stream, mode), stream, false);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return began(real::cuStreamBeginCapture_v2_ptsz(stream, mode), stream, true);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                     const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* dependency_data, std::size_t count,
                                     CUstreamCaptureMode mode) {
  return began(
      real::cuStreamBeginCaptureToGraph(stream, graph, dependencies, dependency_data, count, mode),
      stream, false);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                          const CUgraphNode* dependencies,
                                          const CUgraphEdgeData* dependency_data, std::size_t count,
                                          CUstreamCaptureMode mode) {
  return began(real::cuStreamBeginCaptureToGraph_ptsz(stream, graph, dependencies, dependency_data,
                                                      count, mode),
               stream, true);
}

CUresult cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                       CUgraphRecaptureCallback callback, void* user_data) {
  return began(real::cuStreamBeginRecaptureToGraph(stream, mode, graph, callback, user_data),
               stream, false);
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode,
                                            CUgraph graph, CUgraphRecaptureCallback callback,
                                            void* user_data) {
  return began(real::cuStreamBeginRecaptureToGraph_ptsz(stream, mode, graph, callback, user_data),
               stream, true);
}

CUresult cuStreamBeginCaptureToCig(CUstream stream, CUstreamCigCaptureParams* params) {
  return began(real::cuStreamBeginCaptureToCig(stream, params), stream, false);
}

CUresult cuStreamBeginCaptureToCig_ptsz(CUstream stream, CUstreamCigCaptureParams* params) {
  return began(real::cuStreamBeginCaptureToCig_ptsz(stream, params), stream, true);
}

// Destroying a stream ends its capture, and its handle must not be queried afterwards.
CUresult cuStreamDestroy(CUstream stream) {
  note_stream_end(cuda(), from_cuda(stream));
  return ended(real::cuStreamDestroy(stream), stream, false);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  note_stream_end(cuda(), from_cuda(stream));
  return ended(real::cuStreamDestroy_v2(stream), stream, false);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return ended(real::cuStreamEndCapture(stream, graph), stream, false);
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return ended(real::cuStreamEndCapture_ptsz(stream, graph), stream, true);
}

CUresult cuStreamEndCaptureToCig(CUstream stream) {
  return ended(real::cuStreamEndCaptureToCig(stream), stream, false);
}

CUresult cuStreamEndCaptureToCig_ptsz(CUstream stream) {
  return ended(real::cuStreamEndCaptureToCig_ptsz(stream), stream, true);
}

}  // namespace tracked
}  // namespace gcr::preload
