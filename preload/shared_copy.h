// Copies that a few threads share, for code that may run while all other threads are stopped.
#pragma once

#include <cstddef>

namespace gcr::preload {

/// Copies one piece; several threads at the same time, each another piece. It may run in a bare
/// thread (below), so it calls nothing of the C library that locks, allocates, or is a cancellation
/// point: with one thread that it knows of, the C library takes a lock without an atomic operation.
using CopyPiece = void (*)(void* context, char* to, const char* from, std::size_t bytes);

/// Calls `copy` for all pieces of a copy, from this thread and up to three helpers; returns when
/// all is copied. Any thread; while one copies, others do it alone. May change errno.
///
/// Takes no lock and calls no malloc, since stopped threads may hold its locks. So the helpers are
/// bare threads: the C library does not know them, and they use the TLS of the thread that started
/// them, whose errno they may change. They end 2 ms after the last copy. One that is stopped with
/// the process, in that time, takes no more pieces: nobody waits for it.
void copy_together(CopyPiece copy, void* context, void* to, const void* from, std::size_t bytes);

}  // namespace gcr::preload
