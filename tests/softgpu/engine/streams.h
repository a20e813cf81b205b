// Streams and events. Handles are looked up; kInvalidHandle for one that is unknown.
#pragma once

#include <functional>

#include "tests/softgpu/engine/process.h"

namespace gcr::softgpu {

inline constexpr int kGreatestPriority = -5;

std::shared_ptr<Stream> create_stream(Process& process, Context& context, unsigned flags,
                                      int priority);
/// Waits for its work.
Result destroy_stream(Process& process, const void* handle);
/// kNotReady while there is work.
Result query_stream(Stream& stream);
/// With the context's mutex: an invalid query of a captured stream ends its capture in error.
Result refuse_captured(const Stream& stream);
Result launch_host(Stream& stream, std::function<void()> function);

/// kInvalidValue for an event of several processes that measures time.
Result create_event(Process& process, Context& context, unsigned flags,
                    std::shared_ptr<Event>* event);
/// kInvalidHandle if the event belongs to this process only.
Result event_handle(Process& process, const void* event, std::span<char, kIpcHandleBytes> handle);
/// kInvalidContext in the process that created it, kInvalidValue if it no longer exists.
Result open_event(Process& process, Context& context, std::span<const char, kIpcHandleBytes> handle,
                  std::shared_ptr<Event>* event);
Result record_event(Process& process, const void* event, Stream& stream);
Result wait_event(Process& process, Stream& stream, const void* event);
Result query_event(Process& process, const void* event);
Result synchronize_event(Process& process, const void* event);
/// kInvalidHandle for events that measure no time; kNotReady before both have passed.
Result elapsed_time(Process& process, float* milliseconds, const void* start, const void* end);

}  // namespace gcr::softgpu
