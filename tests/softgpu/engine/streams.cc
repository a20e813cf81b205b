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

std::shared_ptr<Event> create_event(Process& process, Context& context, unsigned flags) {
  auto event = std::make_shared<Event>();
  event->context = context.shared_from_this();
  event->flags = flags;
  return process.events.add(std::move(event));
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
  return stream.context->submit(
      stream, {NodeType::kWaitEvent, [] { return Result::kSuccess; }, true}, nullptr, task);
}

Result query_event(Process& process, const void* handle) {
  TaskRef task;
  if (const Result result = task_of(process, handle, &task)) return result;
  return !task || task->done() ? Result::kSuccess : Result::kNotReady;
}

Result synchronize_event(Process& process, const void* handle) {
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
