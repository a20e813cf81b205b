// Counts what this process copies in user mode: memcpy, memmove and their checked forms, called by
// any code in the process, OpenSSL included. Small copies inlined by the compiler, and loops, are
// not counted.
#pragma once

#include <cstdint>

namespace gcr::bench {

/// Counting slows down programs with many threads that copy small things.
void start_counting_copies();

/// Bytes that all threads copied since then.
std::uint64_t copied_bytes();

}  // namespace gcr::bench
