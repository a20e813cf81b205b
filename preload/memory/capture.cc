#include "preload/memory/capture.h"

#include <algorithm>

#include "preload/memory/backing.h"

namespace gcr::preload {
namespace {

Capture capture_of(Stream* stream, bool per_thread) {
  if (stream == kPerThreadStream || (stream == nullptr && per_thread)) {
    return {kPerThreadStream, pthread_self()};
  }
  return {stream, 0};
}

}  // namespace

bool any_capture(Runtime& r) {
  std::erase_if(r.captures, [&](const Capture& capture) {
    bool capturing = true;
    return capture.thread == 0 &&
           r.driver.is_capturing(capture.stream, &capturing) == Result::kSuccess && !capturing;
  });
  return !r.captures.empty();
}

Result capture_began(Runtime& r, Result result, Stream* stream, bool per_thread) {
  if (result != Result::kSuccess) return result;
  const std::lock_guard lock(r.mutex);
  r.captures.push_back(capture_of(stream, per_thread));
  return result;
}

Result capture_ended(Runtime& r, Result result, Stream* stream, bool per_thread) {
  // The capture continues: another thread must end it.
  if (result == Result::kStreamCaptureWrongThread) return result;
  {
    const std::lock_guard lock(r.mutex);
    if (r.captures.empty()) return result;
    std::erase(r.captures, capture_of(stream, per_thread));
  }
  flush_deferred_frees(r);
  return result;
}

}  // namespace gcr::preload
