#include "tests/softgpu/process.h"

#include <pthread.h>

namespace gcr::softgpu {
namespace {

thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

void after_fork_in_child() {
  Process& process = Process::get();
  if (!process.ready) return;
  process.forked = true;
  process.memory.forget_files();
  for (int i = 0; i < process.devices.count; ++i) process.devices.devices[i].directory.reset();
  process.door->forget();
}

}  // namespace

CUstreamCaptureMode exchange_capture_mode(CUstreamCaptureMode mode) {
  return std::exchange(capture_mode, mode);
}

Process& Process::get() {
  static Process& process = *new Process;
  return process;
}

CUresult Process::init() {
  if (forked) return CUDA_ERROR_NOT_INITIALIZED;
  std::lock_guard lock(init_mutex_);
  if (ready) return CUDA_SUCCESS;
  if (devices.count == 0) {
    if (const CUresult result = devices.load_from_environment()) return result;
  }
  if (const CUresult result = device_file.open()) return result;
  for (int i = 0; i < devices.count; ++i) {
    default_pools[i] = pools.add(std::make_shared<MemoryPool>());
    default_pools[i]->ordinal = i;
    default_pools[i]->is_default = true;
    current_pools[i] = default_pools[i];
  }
  scheduler = std::make_unique<Scheduler>();
  door = std::make_unique<Door>(this);
  if (const CUresult result = door->open()) return result;
  ::pthread_atfork(nullptr, nullptr, after_fork_in_child);
  ready = true;
  return CUDA_SUCCESS;
}

std::vector<std::shared_ptr<Context>>& context_stack() {
  // Never destroyed: the application's exit handlers may call the driver after thread-locals ended.
  thread_local auto& stack = *new std::vector<std::shared_ptr<Context>>;
  return stack;
}

Context* current_context() {
  auto& stack = context_stack();
  return stack.empty() ? nullptr : stack.back().get();
}

std::shared_ptr<Stream> resolve_stream(Process& process, Context& context, CUstream handle,
                                       DefaultStream flavour) {
  if (handle == nullptr) {
    return flavour == DefaultStream::kPerThread ? context.stream_of_this_thread() : context.legacy;
  }
  if (handle == CU_STREAM_LEGACY) return context.legacy;
  if (handle == CU_STREAM_PER_THREAD) return context.stream_of_this_thread();
  return process.streams.get(handle);
}

CUresult refuse_if_capturing(Process& process) {
  if (process.captures == 0 || capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  for (const auto& stream : process.streams.all()) {
    std::lock_guard lock(stream->context->mutex);
    const auto& capture = stream->capture;
    if (!capture || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    const bool same_thread = capture->thread == std::this_thread::get_id();
    const bool global = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                        capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!same_thread && !global) continue;
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return CUDA_SUCCESS;
}

}  // namespace gcr::softgpu
