// Copies that several threads share, for code that may run while all other threads are stopped.
#pragma once

#include <cstddef>

namespace gcr::preload {

/// Copies one piece; several threads call it concurrently for different pieces. It may run in a
/// bare thread (see copy_together), so it must not call a C library function that locks, allocates,
/// or is a cancellation point: if the C library knows of only one thread, its locks are not atomic.
using CopyPiece = void (*)(void* context, char* to, const char* from, std::size_t bytes);

/// Calls `copy` for all pieces of a copy, from this thread and up to three helpers; returns when
/// everything is copied. Any thread; a concurrent call copies without helpers. May change errno.
///
/// Takes no lock and calls no malloc, since stopped threads may hold its locks. Therefore the
/// helpers are bare threads: the C library does not know them, and they use the TLS of the thread
/// that started them, whose errno they may change. They end 2 ms after the last copy. A helper that
/// is stopped with the process in that time claims no more pieces, so no copy waits for it.
void copy_together(CopyPiece copy, void* context, void* to, const void* from, std::size_t bytes);

}  // namespace gcr::preload
