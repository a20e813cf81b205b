#include "tests/softgpu/engine/objects.h"

#include "tests/softgpu/engine/process.h"

namespace gcr::softgpu {
namespace {

void add_unfinished(std::vector<TaskRef>& list, const TaskRef& task) {
  if (task && !task->done()) list.push_back(task);
}

}  // namespace

bool Stream::captured() const {
  std::lock_guard lock(context->mutex);
  return capture != nullptr;
}

std::vector<TaskRef> Context::predecessors(const Stream& stream) const {
  std::vector<TaskRef> list;
  add_unfinished(list, stream.tail);
  add_unfinished(list, settles);
  if (stream.kind == StreamKind::kLegacy) {
    for (const auto& other : created) {
      if (other->blocking()) add_unfinished(list, other->tail);
    }
    for (const auto& [thread, other] : per_thread) add_unfinished(list, other->tail);
  } else if (stream.blocking()) {
    add_unfinished(list, legacy->tail);
  }
  return list;
}

Result Context::submit(Stream& stream, Operation operation, TaskRef* task,
                       const TaskRef& also_after) {
  std::lock_guard lock(mutex);
  if (stream.capture) {
    if (stream.capture->invalidated) return Result::kStreamCaptureInvalidated;
    auto node = std::make_shared<GraphNode>(GraphNode{std::move(operation)});
    std::lock_guard graph_lock(stream.capture->graph->mutex);
    stream.capture->graph->nodes.push_back(std::move(node));
    return Result::kSuccess;
  }
  const bool settling = operation.kernel && std::exchange(stack_unsettled, false);
  auto after = settling ? tails_locked() : predecessors(stream);
  add_unfinished(after, also_after);
  if (operation.instant && after.empty())
    return fault != Result::kSuccess ? fault.load() : operation.run();
  stream.tail = Process::get().scheduler->submit(
      [self = shared_from_this(), run = std::move(operation.run)] {
        const Result result = self->fault != Result::kSuccess ? Result::kSuccess : run();
        if (result == Result::kNotReady) return false;
        if (result != Result::kSuccess) self->fault = result;
        return true;
      },
      after);
  if (settling) settles = stream.tail;
  if (task != nullptr) *task = stream.tail;
  return Result::kSuccess;
}

std::vector<TaskRef> Context::tails() {
  std::lock_guard lock(mutex);
  return tails_locked();
}

std::vector<TaskRef> Context::tails_locked() const {
  std::vector<TaskRef> list;
  add_unfinished(list, legacy->tail);
  for (const auto& stream : created) add_unfinished(list, stream->tail);
  for (const auto& [thread, stream] : per_thread) add_unfinished(list, stream->tail);
  return list;
}

std::shared_ptr<Stream> Context::stream_of_this_thread() {
  std::lock_guard lock(mutex);
  auto& stream = per_thread[std::this_thread::get_id()];
  if (!stream) {
    stream = std::make_shared<Stream>();
    stream->context = shared_from_this();
    stream->kind = StreamKind::kPerThread;
    stream->id = Process::get().next_id++;
  }
  return stream;
}

bool Context::settle_stack() {
  std::lock_guard lock(mutex);
  return std::exchange(stack_unsettled, false);
}

Result Context::synchronize(Stream& stream) {
  std::vector<TaskRef> tasks;
  {
    std::lock_guard lock(mutex);
    if (stream.capture) {
      stream.capture->invalidated = true;
      return Result::kStreamCaptureUnsupported;
    }
    // The legacy stream's work includes what it would wait for.
    tasks = predecessors(stream);
  }
  for (const TaskRef& task : tasks) Process::get().scheduler->wait(task);
  return fault;
}

Result Context::synchronize() {
  for (const TaskRef& task : tails()) Process::get().scheduler->wait(task);
  return fault;
}

bool Context::reaches(const Context* other) const {
  std::lock_guard lock(mutex);
  return peers.contains(other);
}

bool Context::capturing() {
  std::lock_guard lock(mutex);
  for (const auto& stream : created) {
    if (stream->capture) return true;
  }
  return false;
}

}  // namespace gcr::softgpu
