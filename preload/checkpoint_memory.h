// The host memory that a control checkpoint fills and a control restore reads, and the copies
// between it and the GPU, made faster.
//
// NVIDIA's driver (580) does both with one thread. It asks for all of that memory by one private,
// anonymous mapping that is populated (MAP_POPULATE), for which the kernel makes one page of 4 KiB
// after the other. Then it copies in pieces of 2 MiB, by libc's memcpy, between that mapping and
// page-locked memory: most of what is left of both. Between a detach and its attach the driver's
// own calls of these two functions, and nobody else's, come here: memory is mapped empty and marked
// for huge pages; several threads share a copy (shared_copy.h), and pages of zeros that nobody has
// written to yet are left as they are, since most of a context is zeros.
//
// A driver that works in another way is left to it.
#pragma once

#include <string_view>

namespace gcr::preload::checkpoint_memory {

/// Finds the calls of the loaded object with that SONAME. Any thread that may wait for the loader's
/// lock, several at the same time too: all find the same. Not while they are taken over.
void find_calls(std::string_view soname);

/// From here on they come to this library. Both: the door's thread, or the only one in the child of
/// a fork. Neither locks, nor calls malloc or the driver; a call that cannot be taken over stays as
/// it is.
void take_over_calls();
void give_back_calls();

}  // namespace gcr::preload::checkpoint_memory
