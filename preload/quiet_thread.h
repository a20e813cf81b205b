// Threads of the library inside the application: small, named, and with all signals blocked.
#pragma once

#include <pthread.h>

namespace gcr::preload {

/// Starts a joinable thread with every signal blocked that passes a closed gate. `name` (at most 15
/// characters) has to outlive the call; `argument` is passed to `body`. False if no thread can be
/// created.
bool start_quiet_thread(const char* name, void* (*body)(void*), void* argument, pthread_t* thread);

}  // namespace gcr::preload
