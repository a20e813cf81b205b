// Helpers for threads that serve lanes: they block all signals and wait on descriptors.
#pragma once

#include <poll.h>

#include <chrono>
#include <span>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::transport {

/// Blocks all signals in the calling thread, so that the program's other threads receive them, and
/// names the thread `name`.
void become_lane_thread(const char* name);

Status set_blocking(int fd, bool blocks);

/// Waits until one of `waits` is ready; false if none is within `limit`.
Result<bool> wait_ready(std::span<pollfd> waits, std::chrono::milliseconds limit);

/// Creates a descriptor that wake_up() makes readable.
Result<UniqueFd> make_wake();

/// Makes `wake` readable until clear_wake(). Neither call blocks.
void wake_up(const UniqueFd& wake);
void clear_wake(const UniqueFd& wake);

}  // namespace gcr::transport
