// Threads of the library inside the application: small, named, and with all signals blocked.
#pragma once

#include <pthread.h>

namespace gcr::preload {

/// Starts a joinable thread that blocks every signal and passes a closed gate. `name` has at most
/// 15 characters and must outlive the call; `body` gets `argument`. False if no thread can be
/// created.
bool start_quiet_thread(const char* name, void* (*body)(void*), void* argument, pthread_t* thread);

}  // namespace gcr::preload
