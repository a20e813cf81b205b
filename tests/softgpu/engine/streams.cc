#include "tests/softgpu/engine/streams.h"

#include <algorithm>
#include <chrono>

namespace gcr::softgpu {
namespace {

using Clock = std::chrono::steady_clock;

/// The task to wait for, or an error for an event that cannot be waited for.
Result task_of(Process& process, const void* handle, TaskRef* task) {
  const auto event = process.events.get(handle);
  if (!event) return Result::kInvalidHandle;
  std::lock_guard lock(event->mutex);
  if (event->capture) {
    event->capture->invalidated = true;
    return Result::kCapturedEvent;
  }
  *task = event->task;
  return Result::kSuccess;
}

/// Null if the event belongs to this process only.
std::shared_ptr<SharedEvent> shared_of(Process& process, const void* handle) {
  const auto event = process.events.get(handle);
  return event ? event->shared : nullptr;
}

Result record_shared(Stream& stream, const std::shared_ptr<SharedEvent>& event) {
  return stream.context->submit(stream, {NodeType::kEventRecord, [event, record = event->record()] {
                                           event->passed(record);
                                           return Result::kSuccess;
                                         }});
}

Result wait_for_shared(Stream& stream, const std::shared_ptr<SharedEvent>& event) {
  return stream.context->submit(
      stream, {NodeType::kWaitEvent, [event, record = event->last_record()] {
                 return event->has_passed(record) ? Result::kSuccess : Result::kNotReady;
               }});
}

}  // namespace

std::shared_ptr<Stream> create_stream(Process& process, Context& context, unsigned flags,
                                      int priority) {
  auto stream = std::make_shared<Stream>();
  stream->context = context.shared_from_this();
  stream->flags = flags;
  stream->priority = std::clamp(priority, kGreatestPriority, 0);
  stream->id = process.next_id++;
  process.streams.add(stream);
  std::lock_guard lock(context.mutex);
  context.created.push_back(stream);
  return stream;
}

Result destroy_stream(Process& process, const void* handle) {
  const auto stream = process.streams.take(handle);
  if (!stream) return Result::kInvalidHandle;
  Context& context = *stream->context;
  TaskRef last;
  {
    std::lock_guard lock(context.mutex);
    last = stream->tail;
  }
  process.scheduler->wait(last);
  std::lock_guard lock(context.mutex);
  std::erase(context.created, stream);
  return Result::kSuccess;
}

Result refuse_captured(const Stream& stream) {
  if (!stream.capture) return Result::kSuccess;
  stream.capture->invalidated = true;
  return Result::kStreamCaptureUnsupported;
}

Result query_stream(Stream& stream) {
  Context& context = *stream.context;
  std::lock_guard lock(context.mutex);
  if (const Result refused = refuse_captured(stream)) return refused;
  return context.predecessors(stream).empty() ? context.fault.load() : Result::kNotReady;
}

Result launch_host(Stream& stream, std::function<void()> function) {
  return stream.context->submit(stream, {NodeType::kHost, [function = std::move(function)] {
                                           function();
                                           return Result::kSuccess;
                                         }});
}

Result create_event(Process& process, Context& context, unsigned flags,
                    std::shared_ptr<Event>* event) {
  auto made = std::make_shared<Event>();
  made->context = context.shared_from_this();
  made->flags = flags;
  if ((flags & kInterprocess) != 0) {
    if ((flags & kDisableTiming) == 0) return Result::kInvalidValue;
    made->shared = SharedEvent::create();
    if (!made->shared) return Result::kOperatingSystem;
  }
  *event = process.events.add(std::move(made));
  return Result::kSuccess;
}

Result event_handle(Process& process, const void* handle, std::span<char, kIpcHandleBytes> bytes) {
  const auto event = process.events.get(handle);
  if (!event || !event->shared) return Result::kInvalidHandle;
  event->shared->write_handle(bytes);
  return Result::kSuccess;
}

Result open_event(Process& process, Context& context, std::span<const char, kIpcHandleBytes> handle,
                  std::shared_ptr<Event>* event) {
  auto opened = std::make_shared<Event>();
  opened->context = context.shared_from_this();
  opened->flags = kDisableTiming | kInterprocess;
  if (const Result result = SharedEvent::open(handle, &opened->shared)) return result;
  *event = process.events.add(std::move(opened));
  return Result::kSuccess;
}

Result record_event(Process& process, const void* handle, Stream& stream) {
  const auto event = process.events.get(handle);
  if (!event) return Result::kInvalidHandle;
  std::lock_guard lock(event->mutex);
  {
    std::lock_guard stream_lock(stream.context->mutex);
    event->capture = stream.capture;
  }
  if (event->capture) return Result::kSuccess;
  if (event->shared) return record_shared(stream, event->shared);
  event->time = std::make_shared<std::atomic<Clock::rep>>(0);
  event->task.reset();
  return stream.context->submit(stream,
                                {NodeType::kEventRecord,
                                 [time = event->time] {
                                   *time = Clock::now().time_since_epoch().count();
                                   return Result::kSuccess;
                                 },
                                 true},
                                &event->task);
}

Result wait_event(Process& process, Stream& stream, const void* handle) {
  const auto event = process.events.get(handle);
  if (!event) return Result::kInvalidHandle;
  TaskRef task;
  std::shared_ptr<Capture> capture;
  {
    std::lock_guard lock(event->mutex);
    task = event->task;
    capture = event->capture;
  }
  {
    std::lock_guard lock(stream.context->mutex);
    if (capture && !stream.capture) stream.capture = capture;
    if (stream.capture == capture && capture) return Result::kSuccess;
    if (stream.capture) return Result::kStreamCaptureIsolation;
  }
  if (event->shared) return wait_for_shared(stream, event->shared);
  return stream.context->submit(
      stream, {NodeType::kWaitEvent, [] { return Result::kSuccess; }, true}, nullptr, task);
}

Result query_event(Process& process, const void* handle) {
  if (const auto shared = shared_of(process, handle)) {
    return shared->has_passed(shared->last_record()) ? Result::kSuccess : Result::kNotReady;
  }
  TaskRef task;
  if (const Result result = task_of(process, handle, &task)) return result;
  return !task || task->done() ? Result::kSuccess : Result::kNotReady;
}

Result synchronize_event(Process& process, const void* handle) {
  if (const auto shared = shared_of(process, handle)) {
    const std::uint64_t record = shared->last_record();
    while (!shared->has_passed(record)) std::this_thread::sleep_for(std::chrono::microseconds(100));
    return process.events.get(handle)->context->fault;
  }
  TaskRef task;
  if (const Result result = task_of(process, handle, &task)) return result;
  process.scheduler->wait(task);
  return process.events.get(handle)->context->fault;
}

Result elapsed_time(Process& process, float* milliseconds, const void* start, const void* end) {
  const auto first = process.events.get(start);
  const auto second = process.events.get(end);
  if (!first || !second || !first->time || !second->time) return Result::kInvalidHandle;
  if (*first->time == 0 || *second->time == 0) return Result::kNotReady;
  const Clock::duration elapsed(*second->time - *first->time);
  *milliseconds = std::chrono::duration<float, std::milli>(elapsed).count();
  return Result::kSuccess;
}

}  // namespace gcr::softgpu
