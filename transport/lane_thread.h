// What threads that serve lanes need: no signals, and descriptors to wait on.
#pragma once

#include <poll.h>

#include <chrono>
#include <span>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::transport {

/// Blocks signals in this thread: they are for the program's other threads.
void become_lane_thread(const char* name);

Status set_blocking(int fd, bool blocks);

/// Whether one of `waits` becomes ready within `limit`.
Result<bool> wait_ready(std::span<pollfd> waits, std::chrono::milliseconds limit);

/// A descriptor that wake_up() makes readable.
Result<UniqueFd> make_wake();

/// Makes `wake` readable until calm_down(). Never blocks.
void wake_up(const UniqueFd& wake);
void calm_down(const UniqueFd& wake);

}  // namespace gcr::transport
