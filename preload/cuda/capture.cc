#include "preload/cuda/capture.h"

#include <algorithm>

#include "preload/cuda/backing.h"
#include "preload/cuda/driver_calls.h"
#include "preload/cuda/pools.h"
#include "preload/cuda/tracked.h"

namespace gcr::preload {
namespace {

Capture capture_of(CUstream stream, bool per_thread_default) {
  if (stream == CU_STREAM_PER_THREAD || (stream == nullptr && per_thread_default)) {
    return {CU_STREAM_PER_THREAD, pthread_self()};
  }
  return {stream, 0};
}

bool same(const Capture& left, const Capture& right) {
  return left.stream == right.stream && left.thread == right.thread;
}

CUresult began(CUresult result, Capture capture) {
  if (result != CUDA_SUCCESS) return result;
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  s.captures.push_back(capture);
  return result;
}

CUresult ended(CUresult result, Capture capture) {
  // A capture that another thread has to end goes on.
  if (result == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) return result;
  {
    ProcessState& s = state();
    const std::lock_guard lock(s.mutex);
    if (s.captures.empty()) return result;
    std::erase_if(s.captures, [&](const Capture& known) { return same(known, capture); });
  }
  flush_deferred_frees();
  return result;
}

}  // namespace

bool any_capture(ProcessState& s) {
  std::erase_if(s.captures, [](const Capture& capture) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return capture.thread == 0 &&
           real::cuStreamIsCapturing(capture.stream, &status) == CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_NONE;
  });
  return !s.captures.empty();
}

namespace tracked {

CUresult cuStreamBeginCapture(CUstream stream) {
  return began(real::cuStreamBeginCapture(stream), capture_of(stream, false));
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  return began(real::cuStreamBeginCapture_ptsz(stream), capture_of(stream, true));
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return began(real::cuStreamBeginCapture_v2(stream, mode), capture_of(stream, false));
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return began(real::cuStreamBeginCapture_v2_ptsz(stream, mode), capture_of(stream, true));
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                     const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* dependency_data, std::size_t count,
                                     CUstreamCaptureMode mode) {
  return began(
      real::cuStreamBeginCaptureToGraph(stream, graph, dependencies, dependency_data, count, mode),
      capture_of(stream, false));
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                          const CUgraphNode* dependencies,
                                          const CUgraphEdgeData* dependency_data, std::size_t count,
                                          CUstreamCaptureMode mode) {
  return began(real::cuStreamBeginCaptureToGraph_ptsz(stream, graph, dependencies, dependency_data,
                                                      count, mode),
               capture_of(stream, true));
}

// A stream that is destroyed takes its capture with it, and its handle must not be asked again.
CUresult cuStreamDestroy(CUstream stream) {
  note_stream_end(stream);
  return ended(real::cuStreamDestroy(stream), capture_of(stream, false));
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  note_stream_end(stream);
  return ended(real::cuStreamDestroy_v2(stream), capture_of(stream, false));
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return ended(real::cuStreamEndCapture(stream, graph), capture_of(stream, false));
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return ended(real::cuStreamEndCapture_ptsz(stream, graph), capture_of(stream, true));
}

}  // namespace tracked
}  // namespace gcr::preload
