// Streams, events, host functions.
#include <algorithm>
#include <chrono>

#include "tests/softgpu/process.h"
#include "tests/softgpu/stream_api.h"

namespace gcr::softgpu {
namespace {

using Clock = std::chrono::steady_clock;

/// Runs `body(process, stream)` for a valid stream of the current context.
template <class Body>
CUresult with_stream(DefaultStream flavour, CUstream handle, Body&& body) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    const auto stream = resolve_stream(process, context, handle, flavour);
    return stream ? body(process, stream) : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult create_stream(CUstream* handle, unsigned flags, int priority) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    if (handle == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto stream = std::make_shared<Stream>();
    stream->context = context.shared_from_this();
    stream->flags = flags;
    stream->priority = std::clamp(priority, -5, 0);
    stream->id = process.next_id++;
    process.streams.add(stream);
    std::lock_guard lock(context.mutex);
    context.created.push_back(stream);
    *handle = reinterpret_cast<CUstream>(stream.get());
    return CUDA_SUCCESS;
  });
}

CUresult stream_synchronize(DefaultStream flavour, CUstream handle) {
  return with_stream(flavour, handle, [](Process&, const std::shared_ptr<Stream>& stream) {
    return stream->context->synchronize(*stream);
  });
}

/// With the context's mutex: what a captured stream cannot be asked ends its capture in error.
CUresult refuse_captured(const Stream& stream) {
  if (!stream.capture) return CUDA_SUCCESS;
  stream.capture->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult stream_query(DefaultStream flavour, CUstream handle) {
  return with_stream(flavour, handle, [](Process&, const std::shared_ptr<Stream>& stream) {
    Context& context = *stream->context;
    std::lock_guard lock(context.mutex);
    if (const CUresult refused = refuse_captured(*stream); refused != CUDA_SUCCESS) return refused;
    return context.predecessors(*stream).empty() ? context.fault.load() : CUDA_ERROR_NOT_READY;
  });
}

CUresult stream_flags(DefaultStream flavour, CUstream handle, unsigned* flags) {
  return with_stream(flavour, handle, [&](Process&, const std::shared_ptr<Stream>& stream) {
    std::lock_guard lock(stream->context->mutex);
    *flags = stream->flags;
    return refuse_captured(*stream);
  });
}

CUresult stream_priority(DefaultStream flavour, CUstream handle, int* priority) {
  return with_stream(flavour, handle, [&](Process&, const std::shared_ptr<Stream>& stream) {
    *priority = stream->priority;
    return CUDA_SUCCESS;
  });
}

CUresult stream_id(DefaultStream flavour, CUstream handle, unsigned long long* id) {
  return with_stream(flavour, handle, [&](Process&, const std::shared_ptr<Stream>& stream) {
    std::lock_guard lock(stream->context->mutex);
    *id = stream->id;
    return refuse_captured(*stream);
  });
}

CUresult stream_context(DefaultStream flavour, CUstream handle, CUcontext* context) {
  return with_stream(flavour, handle, [&](Process&, const std::shared_ptr<Stream>& stream) {
    *context = reinterpret_cast<CUcontext>(stream->context.get());
    return CUDA_SUCCESS;
  });
}

CUresult record(DefaultStream flavour, CUevent handle, CUstream stream_handle) {
  return with_stream(flavour, stream_handle,
                     [&](Process& process, const std::shared_ptr<Stream>& stream) -> CUresult {
                       const auto event = process.events.get(handle);
                       if (!event) return CUDA_ERROR_INVALID_HANDLE;
                       std::lock_guard lock(event->mutex);
                       {
                         std::lock_guard stream_lock(stream->context->mutex);
                         event->capture = stream->capture;
                       }
                       if (event->capture) return CUDA_SUCCESS;
                       event->time = std::make_shared<std::atomic<Clock::rep>>(0);
                       event->task.reset();
                       return stream->context->submit(
                           *stream,
                           {CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                            [time = event->time] {
                              *time = Clock::now().time_since_epoch().count();
                              return CUDA_SUCCESS;
                            },
                            true},
                           &event->task);
                     });
}

CUresult record_with_flags(DefaultStream flavour, CUevent event, CUstream stream, unsigned) {
  return record(flavour, event, stream);
}

CUresult wait_event(DefaultStream flavour, CUstream stream_handle, CUevent handle, unsigned) {
  return with_stream(flavour, stream_handle,
                     [&](Process& process, const std::shared_ptr<Stream>& stream) -> CUresult {
                       const auto event = process.events.get(handle);
                       if (!event) return CUDA_ERROR_INVALID_HANDLE;
                       TaskRef task;
                       std::shared_ptr<Capture> capture;
                       {
                         std::lock_guard lock(event->mutex);
                         task = event->task;
                         capture = event->capture;
                       }
                       {
                         std::lock_guard lock(stream->context->mutex);
                         if (capture && !stream->capture) stream->capture = capture;
                         if (stream->capture == capture && capture) return CUDA_SUCCESS;
                         if (stream->capture) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
                       }
                       return stream->context->submit(
                           *stream,
                           {CU_GRAPH_NODE_TYPE_WAIT_EVENT, [] { return CUDA_SUCCESS; }, true},
                           nullptr, task);
                     });
}

CUresult launch_host(DefaultStream flavour, CUstream handle, CUhostFn function, void* data) {
  return with_stream(
      flavour, handle, [&](Process&, const std::shared_ptr<Stream>& stream) -> CUresult {
        if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
        return stream->context->submit(*stream, {CU_GRAPH_NODE_TYPE_HOST, [function, data] {
                                                   function(data);
                                                   return CUDA_SUCCESS;
                                                 }});
      });
}

CUresult add_callback(DefaultStream flavour, CUstream handle, CUstreamCallback callback, void* data,
                      unsigned) {
  return with_stream(
      flavour, handle, [&](Process&, const std::shared_ptr<Stream>& stream) -> CUresult {
        if (callback == nullptr) return CUDA_ERROR_INVALID_VALUE;
        return stream->context->submit(*stream, {CU_GRAPH_NODE_TYPE_HOST, [=] {
                                                   callback(handle, CUDA_SUCCESS, data);
                                                   return CUDA_SUCCESS;
                                                 }});
      });
}

/// The task to wait for, or an error for an event that cannot be waited for.
CUresult task_of(Process& process, CUevent handle, TaskRef* task) {
  const auto event = process.events.get(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(event->mutex);
  if (event->capture) {
    event->capture->invalidated = true;
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  *task = event->task;
  return CUDA_SUCCESS;
}

}  // namespace

SOFTGPU_API cuStreamCreate(CUstream* stream, unsigned flags) {
  return create_stream(stream, flags, 0);
}

SOFTGPU_API cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  return create_stream(stream, flags, priority);
}

SOFTGPU_API cuStreamDestroy_v2(CUstream handle) {
  return call([&](Process& process) -> CUresult {
    const auto stream = process.streams.take(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    Context& context = *stream->context;
    TaskRef last;
    {
      std::lock_guard lock(context.mutex);
      last = stream->tail;
    }
    process.scheduler->wait(last);
    std::lock_guard lock(context.mutex);
    std::erase(context.created, stream);
    return CUDA_SUCCESS;
  });
}

SOFTGPU_BOTH(cuStreamSynchronize, cuStreamSynchronize_ptsz, stream_synchronize, (CUstream stream),
             stream)
SOFTGPU_BOTH(cuStreamQuery, cuStreamQuery_ptsz, stream_query, (CUstream stream), stream)
SOFTGPU_BOTH(cuStreamGetFlags, cuStreamGetFlags_ptsz, stream_flags,
             (CUstream stream, unsigned* flags), stream, flags)
SOFTGPU_BOTH(cuStreamGetPriority, cuStreamGetPriority_ptsz, stream_priority,
             (CUstream stream, int* priority), stream, priority)
SOFTGPU_BOTH(cuStreamGetId, cuStreamGetId_ptsz, stream_id,
             (CUstream stream, unsigned long long* id), stream, id)
SOFTGPU_BOTH(cuStreamGetCtx, cuStreamGetCtx_ptsz, stream_context,
             (CUstream stream, CUcontext* context), stream, context)
SOFTGPU_BOTH(cuStreamWaitEvent, cuStreamWaitEvent_ptsz, wait_event,
             (CUstream stream, CUevent event, unsigned flags), stream, event, flags)
SOFTGPU_BOTH(cuStreamAddCallback, cuStreamAddCallback_ptsz, add_callback,
             (CUstream stream, CUstreamCallback callback, void* data, unsigned flags), stream,
             callback, data, flags)
SOFTGPU_BOTH(cuLaunchHostFunc, cuLaunchHostFunc_ptsz, launch_host,
             (CUstream stream, CUhostFn function, void* data), stream, function, data)
SOFTGPU_BOTH(cuEventRecord, cuEventRecord_ptsz, record, (CUevent event, CUstream stream), event,
             stream)
SOFTGPU_BOTH(cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz, record_with_flags,
             (CUevent event, CUstream stream, unsigned flags), event, stream, flags)

SOFTGPU_API cuEventCreate(CUevent* handle, unsigned flags) {
  return call_in_context([&](Process& process, Context& context) {
    auto event = std::make_shared<Event>();
    event->context = context.shared_from_this();
    event->flags = flags;
    *handle = reinterpret_cast<CUevent>(process.events.add(std::move(event)).get());
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuEventDestroy_v2(CUevent handle) {
  return call([&](Process& process) {
    return process.events.take(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

SOFTGPU_API cuEventQuery(CUevent handle) {
  return call([&](Process& process) -> CUresult {
    TaskRef task;
    if (const CUresult result = task_of(process, handle, &task)) return result;
    return !task || task->done() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

SOFTGPU_API cuEventSynchronize(CUevent handle) {
  return call([&](Process& process) -> CUresult {
    TaskRef task;
    if (const CUresult result = task_of(process, handle, &task)) return result;
    process.scheduler->wait(task);
    return process.events.get(handle)->context->fault;
  });
}

SOFTGPU_API cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return call([&](Process& process) -> CUresult {
    const auto first = process.events.get(start);
    const auto second = process.events.get(end);
    if (!first || !second || !first->time || !second->time) return CUDA_ERROR_INVALID_HANDLE;
    if (*first->time == 0 || *second->time == 0) return CUDA_ERROR_NOT_READY;
    const Clock::duration elapsed(*second->time - *first->time);
    *milliseconds = std::chrono::duration<float, std::milli>(elapsed).count();
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime(milliseconds, start, end);
}

}  // namespace gcr::softgpu
