#include "tests/softgpu/engine/process.h"

#include <pthread.h>

namespace gcr::softgpu {
namespace {

// Stream handles with a special meaning, in both interfaces.
constexpr std::uintptr_t kLegacyStream = 1;
constexpr std::uintptr_t kPerThreadStream = 2;

thread_local CaptureMode capture_mode = CaptureMode::kGlobal;

void after_fork_in_child() { Process::get().forget_parent(); }

}  // namespace

CaptureMode exchange_capture_mode(CaptureMode mode) { return std::exchange(capture_mode, mode); }

Process& Process::get() {
  static Process& process = *new Process;
  return process;
}

void Process::forget_parent() {
  if (!door) return;
  door->forget();
  if (ready) {
    forked = true;
    memory.forget_files();
    for (int i = 0; i < devices.count; ++i) devices.devices[i].directory.reset();
    return;
  }
  door.reset();
  (void)scheduler.release();  // its threads do not exist here
  device_file.leave_open();
}

Result Process::attend(Vendor vendor) {
  if (forked) return Result::kNotInitialized;
  std::lock_guard lock(init_mutex_);
  return attend_locked(vendor);
}

Result Process::attend_locked(Vendor vendor) {
  if (door) return Result::kSuccess;
  if (devices.count == 0) {
    devices.vendor = vendor;
    if (const Result result = devices.load_from_environment()) return result;
  }
  if (const Result result = device_file.open()) return result;
  scheduler = std::make_unique<Scheduler>();
  auto opened = std::make_unique<Door>(this);
  if (const Result result = opened->open()) return result;
  door = std::move(opened);
  static const int registered = ::pthread_atfork(nullptr, nullptr, after_fork_in_child);
  return registered == 0 ? Result::kSuccess : Result::kOperatingSystem;
}

Result Process::init(Vendor vendor) {
  if (forked) return Result::kNotInitialized;
  std::lock_guard lock(init_mutex_);
  if (ready) return Result::kSuccess;
  if (const Result result = attend_locked(vendor)) return result;
  for (int i = 0; i < devices.count; ++i) {
    default_pools[i] = pools.add(std::make_shared<MemoryPool>());
    default_pools[i]->ordinal = i;
    default_pools[i]->is_default = true;
    current_pools[i] = default_pools[i];
  }
  ready = true;
  return Result::kSuccess;
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

std::shared_ptr<Stream> resolve_stream(Process& process, Context& context, const void* handle,
                                       DefaultStream flavour) {
  if (handle == nullptr) {
    return flavour == DefaultStream::kPerThread ? context.stream_of_this_thread() : context.legacy;
  }
  if (reinterpret_cast<std::uintptr_t>(handle) == kLegacyStream) return context.legacy;
  if (reinterpret_cast<std::uintptr_t>(handle) == kPerThreadStream)
    return context.stream_of_this_thread();
  return process.streams.get(handle);
}

Result refuse_if_capturing(Process& process) {
  if (process.captures == 0 || capture_mode == CaptureMode::kRelaxed) return Result::kSuccess;
  for (const auto& stream : process.streams.all()) {
    std::lock_guard lock(stream->context->mutex);
    const auto& capture = stream->capture;
    if (!capture || capture->mode == CaptureMode::kRelaxed) continue;
    const bool same_thread = capture->thread == std::this_thread::get_id();
    const bool global =
        capture->mode == CaptureMode::kGlobal && capture_mode == CaptureMode::kGlobal;
    if (!same_thread && !global) continue;
    capture->invalidated = true;
    return Result::kStreamCaptureUnsupported;
  }
  return Result::kSuccess;
}

}  // namespace gcr::softgpu
