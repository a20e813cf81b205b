// Speeds up the driver's control checkpoint and control restore: the host memory that they use, and
// the copies between it and the GPU.
//
// NVIDIA's driver (580) does both with one thread. It maps all of that memory at once, private,
// anonymous and populated (MAP_POPULATE), and the kernel allocates one page of 4 KiB after the
// other. Then it copies pieces of 2 MiB with libc's memcpy between that mapping and page-locked
// memory, which takes most of the remaining time. Between a detach and its attach, this library
// intercepts the driver's own calls of these two functions, and no other object's: it maps the
// memory unpopulated and marks it for huge pages; several threads share a copy (shared_copy.h); and
// zeros are not written to untouched pages, since most of a context is zeros.
//
// A driver that works differently is not affected.
#pragma once

#include <string_view>

namespace gcr::preload::checkpoint_memory {

/// Finds the calls of the loaded object `soname`. Any thread that may wait for the loader's lock,
/// also several concurrently, which all find the same. Not while the calls are intercepted.
void find_calls(std::string_view soname);

/// Redirects the found calls to this library, until restore_calls(). A call that cannot be
/// redirected stays as it is. Only the door's thread, or the only thread in the child of a fork,
/// may call the two functions. They do not lock, and call neither malloc nor the driver.
void intercept_calls();
void restore_calls();

}  // namespace gcr::preload::checkpoint_memory
