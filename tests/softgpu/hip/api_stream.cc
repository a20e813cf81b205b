// Streams, events, host functions, words of memory that streams wait for and write.
#include <sys/mman.h>

#include <atomic>
#include <memory>

#include "tests/softgpu/engine/streams.h"
#include "tests/softgpu/hip/face.h"

namespace gcr::softgpu::hip {
namespace {

using StreamRef = std::shared_ptr<Stream>;

hipError_t create(hipStream_t* handle, unsigned flags, int priority) {
  return call_in_context([&](Process& process, Context& context) {
    if (handle == nullptr || (flags != hipStreamDefault && flags != hipStreamNonBlocking)) {
      return hipErrorInvalidValue;
    }
    *handle = handle_of<hipStream_t>(create_stream(process, context, flags, priority).get());
    return hipSuccess;
  });
}

hipError_t synchronize(DefaultStream flavour, hipStream_t handle) {
  return call_in_stream(flavour, handle, [](Process&, const StreamRef& stream) {
    return stream->context->synchronize(*stream);
  });
}

hipError_t query(DefaultStream flavour, hipStream_t handle) {
  return call_in_stream(flavour, handle,
                        [](Process&, const StreamRef& stream) { return query_stream(*stream); });
}

hipError_t get_flags(DefaultStream flavour, hipStream_t handle, unsigned* flags) {
  return call_in_stream(flavour, handle, [&](Process&, const StreamRef& stream) {
    if (flags == nullptr) return hipErrorInvalidValue;
    *flags = stream->flags;
    return hipSuccess;
  });
}

hipError_t get_priority(DefaultStream flavour, hipStream_t handle, int* priority) {
  return call_in_stream(flavour, handle, [&](Process&, const StreamRef& stream) {
    if (priority == nullptr) return hipErrorInvalidValue;
    *priority = stream->priority;
    return hipSuccess;
  });
}

hipError_t record(DefaultStream flavour, hipEvent_t event, hipStream_t handle) {
  return call_in_stream(flavour, handle, [&](Process& process, const StreamRef& stream) {
    return record_event(process, event, *stream);
  });
}

hipError_t wait(DefaultStream flavour, hipStream_t handle, hipEvent_t event, unsigned flags) {
  return call_in_stream(flavour, handle, [&](Process& process, const StreamRef& stream) -> Result {
    if (flags != 0) return Result::kInvalidValue;
    return wait_event(process, *stream, event);
  });
}

hipError_t host_function(DefaultStream flavour, hipStream_t handle, hipHostFn_t function,
                         void* data) {
  return call_in_stream(flavour, handle, [&](Process&, const StreamRef& stream) -> Result {
    if (function == nullptr) return Result::kInvalidValue;
    return launch_host(*stream, [function, data] { function(data); });
  });
}

hipError_t callback(DefaultStream flavour, hipStream_t handle, hipStreamCallback_t function,
                    void* data, unsigned flags) {
  return call_in_stream(flavour, handle, [&](Process&, const StreamRef& stream) -> Result {
    if (function == nullptr || flags != 0) return Result::kInvalidValue;
    return launch_host(*stream, [=] { function(handle, hipSuccess, data); });
  });
}

hipError_t create_event_with(hipEvent_t* handle, unsigned flags) {
  return call_in_context([&](Process& process, Context& context) -> Result {
    if (handle == nullptr) return Result::kInvalidValue;
    std::shared_ptr<Event> event;
    const Result result = create_event(process, context, flags, &event);
    if (!result) *handle = handle_of<hipEvent_t>(event.get());
    return result;
  });
}

template <class T>
bool holds(T word, T value, T mask, unsigned condition) {
  switch (condition) {
    case hipStreamWaitValueGte:
      return (word & mask) >= value;
    case hipStreamWaitValueEq:
      return (word & mask) == value;
    case hipStreamWaitValueAnd:
      return (word & mask & value) != 0;
    default:
      return (~(word | value) & mask) != 0;
  }
}

/// Puts `run(word)` on the stream, for a word of memory that the program shares with the GPU.
template <class T, class Run>
hipError_t on_word(hipStream_t handle, void* address, Run run) {
  return call_in_stream(
      DefaultStream::kLegacy, handle, [&](Process& process, const StreamRef& stream) -> Result {
        if (address_of(address) % sizeof(T) != 0 ||
            !process.memory.accessible(address_of(address), sizeof(T), kReadWrite)) {
          return Result::kInvalidValue;
        }
        return stream->context->submit(
            *stream, {NodeType::kKernel,
                      [address, run] { return run(std::atomic_ref(*static_cast<T*>(address))); }});
      });
}

template <class T>
hipError_t wait_value(hipStream_t stream, void* address, T value, unsigned condition, T mask) {
  if (condition > hipStreamWaitValueNor) return remember(hipErrorInvalidValue);
  return on_word<T>(stream, address, [=](std::atomic_ref<T> word) {
    return holds(word.load(), value, mask, condition) ? Result::kSuccess : Result::kNotReady;
  });
}

template <class T>
hipError_t write_value(hipStream_t stream, void* address, T value) {
  return on_word<T>(stream, address, [value](std::atomic_ref<T> word) {
    word.store(value);
    return Result::kSuccess;
  });
}

}  // namespace

SOFTHIP_API hipStreamCreate(hipStream_t* stream) { return create(stream, hipStreamDefault, 0); }
SOFTHIP_API hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) {
  return create(stream, flags, 0);
}
SOFTHIP_API hipStreamCreateWithPriority(hipStream_t* stream, unsigned flags, int priority) {
  return create(stream, flags, priority);
}
SOFTHIP_API hipExtStreamCreateWithCUMask(hipStream_t* stream, std::uint32_t words,
                                         const std::uint32_t* mask) {
  if (words == 0 || mask == nullptr) return remember(hipErrorInvalidValue);
  return create(stream, hipStreamDefault, 0);
}

SOFTHIP_API hipStreamDestroy(hipStream_t stream) {
  return call([&](Process& process) {
    if (stream == nullptr) return hipErrorInvalidHandle;
    return destroy_stream(process, stream) ? hipErrorContextIsDestroyed : hipSuccess;
  });
}

SOFTHIP_API hipStreamGetDevice(hipStream_t handle, hipDevice_t* device) {
  return call_in_stream(DefaultStream::kLegacy, handle, [&](Process&, const StreamRef& stream) {
    if (device == nullptr) return hipErrorInvalidValue;
    *device = stream->context->ordinal;
    return hipSuccess;
  });
}

SOFTHIP_BOTH(hipStreamSynchronize, synchronize, (hipStream_t stream), stream)
SOFTHIP_BOTH(hipStreamQuery, query, (hipStream_t stream), stream)
SOFTHIP_BOTH(hipStreamGetFlags, get_flags, (hipStream_t stream, unsigned* flags), stream, flags)
SOFTHIP_BOTH(hipStreamGetPriority, get_priority, (hipStream_t stream, int* priority), stream,
             priority)
SOFTHIP_BOTH(hipStreamWaitEvent, wait, (hipStream_t stream, hipEvent_t event, unsigned flags),
             stream, event, flags)
SOFTHIP_BOTH(hipLaunchHostFunc, host_function,
             (hipStream_t stream, hipHostFn_t function, void* data), stream, function, data)
SOFTHIP_BOTH(hipStreamAddCallback, callback,
             (hipStream_t stream, hipStreamCallback_t function, void* data, unsigned flags), stream,
             function, data, flags)
SOFTHIP_BOTH(hipEventRecord, record, (hipEvent_t event, hipStream_t stream), event, stream)

SOFTHIP_API hipEventRecordWithFlags(hipEvent_t event, hipStream_t stream, unsigned) {
  return record(DefaultStream::kLegacy, event, stream);
}

SOFTHIP_API hipEventCreate(hipEvent_t* event) { return create_event_with(event, 0); }
SOFTHIP_API hipEventCreateWithFlags(hipEvent_t* event, unsigned flags) {
  return create_event_with(event, flags);
}

SOFTHIP_API hipIpcGetEventHandle(hipIpcEventHandle_t* handle, hipEvent_t event) {
  return call([&](Process& process) -> Result {
    if (handle == nullptr) return Result::kInvalidValue;
    return event_handle(process, event, handle->reserved);
  });
}

SOFTHIP_API hipIpcOpenEventHandle(hipEvent_t* opened, hipIpcEventHandle_t handle) {
  return call_in_context([&](Process& process, Context& context) -> Result {
    if (opened == nullptr) return Result::kInvalidValue;
    std::shared_ptr<Event> event;
    const Result result = open_event(process, context, handle.reserved, &event);
    if (!result) *opened = handle_of<hipEvent_t>(event.get());
    return result;
  });
}

SOFTHIP_API hipEventDestroy(hipEvent_t event) {
  return call([&](Process& process) {
    return process.events.take(event) ? hipSuccess : hipErrorInvalidHandle;
  });
}

SOFTHIP_API hipEventQuery(hipEvent_t event) {
  return call([&](Process& process) { return query_event(process, event); });
}

SOFTHIP_API hipEventSynchronize(hipEvent_t event) {
  return call([&](Process& process) { return synchronize_event(process, event); });
}

SOFTHIP_API hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t end) {
  return call([&](Process& process) -> Result {
    if (milliseconds == nullptr) return Result::kInvalidValue;
    return elapsed_time(process, milliseconds, start, end);
  });
}

SOFTHIP_API hipStreamWaitValue32(hipStream_t stream, void* address, std::uint32_t value,
                                 unsigned flags, std::uint32_t mask) {
  return wait_value(stream, address, value, flags, mask);
}
SOFTHIP_API hipStreamWaitValue64(hipStream_t stream, void* address, std::uint64_t value,
                                 unsigned flags, std::uint64_t mask) {
  return wait_value(stream, address, value, flags, mask);
}
SOFTHIP_API hipStreamWriteValue32(hipStream_t stream, void* address, std::uint32_t value,
                                  unsigned) {
  return write_value(stream, address, value);
}
SOFTHIP_API hipStreamWriteValue64(hipStream_t stream, void* address, std::uint64_t value,
                                  unsigned) {
  return write_value(stream, address, value);
}

}  // namespace gcr::softgpu::hip
