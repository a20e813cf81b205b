// Streams, events, host functions.
#include "tests/softgpu/cuda/stream_api.h"
#include "tests/softgpu/engine/streams.h"

namespace gcr::softgpu {
namespace {

/// Runs `body(process, stream)` for a valid stream of the current context.
template <class Body>
CUresult with_stream(DefaultStream flavour, CUstream handle, Body&& body) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    const auto stream = resolve_stream(process, context, handle, flavour);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    return body(process, stream);
  });
}

CUresult create(CUstream* handle, unsigned flags, int priority) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    if (handle == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *handle = reinterpret_cast<CUstream>(create_stream(process, context, flags, priority).get());
    return CUDA_SUCCESS;
  });
}

CUresult stream_synchronize(DefaultStream flavour, CUstream handle) {
  return with_stream(flavour, handle, [](Process&, const std::shared_ptr<Stream>& stream) {
    return stream->context->synchronize(*stream);
  });
}

CUresult stream_query(DefaultStream flavour, CUstream handle) {
  return with_stream(flavour, handle, [](Process&, const std::shared_ptr<Stream>& stream) {
    return query_stream(*stream);
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

CUresult record(DefaultStream flavour, CUevent event, CUstream handle) {
  return with_stream(flavour, handle, [&](Process& process, const std::shared_ptr<Stream>& stream) {
    return record_event(process, event, *stream);
  });
}

CUresult record_with_flags(DefaultStream flavour, CUevent event, CUstream stream, unsigned) {
  return record(flavour, event, stream);
}

CUresult stream_wait(DefaultStream flavour, CUstream handle, CUevent event, unsigned) {
  return with_stream(flavour, handle, [&](Process& process, const std::shared_ptr<Stream>& stream) {
    return wait_event(process, *stream, event);
  });
}

CUresult host_function(DefaultStream flavour, CUstream handle, CUhostFn function, void* data) {
  return with_stream(flavour, handle,
                     [&](Process&, const std::shared_ptr<Stream>& stream) -> CUresult {
                       if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
                       return launch_host(*stream, [function, data] { function(data); });
                     });
}

CUresult add_callback(DefaultStream flavour, CUstream handle, CUstreamCallback callback, void* data,
                      unsigned) {
  return with_stream(flavour, handle,
                     [&](Process&, const std::shared_ptr<Stream>& stream) -> CUresult {
                       if (callback == nullptr) return CUDA_ERROR_INVALID_VALUE;
                       return launch_host(*stream, [=] { callback(handle, CUDA_SUCCESS, data); });
                     });
}

}  // namespace

SOFTGPU_API cuStreamCreate(CUstream* stream, unsigned flags) { return create(stream, flags, 0); }

SOFTGPU_API cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  return create(stream, flags, priority);
}

SOFTGPU_API cuStreamDestroy_v2(CUstream stream) {
  return call([&](Process& process) { return destroy_stream(process, stream); });
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
SOFTGPU_BOTH(cuStreamWaitEvent, cuStreamWaitEvent_ptsz, stream_wait,
             (CUstream stream, CUevent event, unsigned flags), stream, event, flags)
SOFTGPU_BOTH(cuStreamAddCallback, cuStreamAddCallback_ptsz, add_callback,
             (CUstream stream, CUstreamCallback callback, void* data, unsigned flags), stream,
             callback, data, flags)
SOFTGPU_BOTH(cuLaunchHostFunc, cuLaunchHostFunc_ptsz, host_function,
             (CUstream stream, CUhostFn function, void* data), stream, function, data)
SOFTGPU_BOTH(cuEventRecord, cuEventRecord_ptsz, record, (CUevent event, CUstream stream), event,
             stream)
SOFTGPU_BOTH(cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz, record_with_flags,
             (CUevent event, CUstream stream, unsigned flags), event, stream, flags)

SOFTGPU_API cuEventCreate(CUevent* handle, unsigned flags) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    std::shared_ptr<Event> event;
    if (const Result result = create_event(process, context, flags, &event)) return result;
    *handle = reinterpret_cast<CUevent>(event.get());
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  return call([&](Process& process) -> CUresult {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return event_handle(process, event, handle->reserved);
  });
}

SOFTGPU_API cuIpcOpenEventHandle(CUevent* opened, CUipcEventHandle handle) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    std::shared_ptr<Event> event;
    if (const Result result = open_event(process, context, handle.reserved, &event)) return result;
    *opened = reinterpret_cast<CUevent>(event.get());
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuEventDestroy_v2(CUevent handle) {
  return call([&](Process& process) {
    return process.events.take(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

SOFTGPU_API cuEventQuery(CUevent event) {
  return call([&](Process& process) { return query_event(process, event); });
}

SOFTGPU_API cuEventSynchronize(CUevent event) {
  return call([&](Process& process) { return synchronize_event(process, event); });
}

SOFTGPU_API cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return call([&](Process& process) { return elapsed_time(process, milliseconds, start, end); });
}

SOFTGPU_API cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime(milliseconds, start, end);
}

}  // namespace gcr::softgpu
