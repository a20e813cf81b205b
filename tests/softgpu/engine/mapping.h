// The mmap idioms of the software GPU's memory. None of them uses the heap.
#pragma once

#include <cstdint>

namespace gcr::softgpu {

inline constexpr std::uint64_t kPageBytes = 4096;

/// Address space without memory behind it; 0 if there is none. With a `hint` exactly there or, if
/// that is taken, somewhere else. `alignment` is a power of two.
std::uintptr_t reserve_addresses(std::uint64_t bytes, std::uint64_t alignment,
                                 std::uintptr_t hint = 0);

/// Turns a range back into address space without memory.
bool make_reserved(std::uintptr_t address, std::uint64_t bytes);

/// Maps the file over a range; forked children do not inherit it.
bool map_file_over(std::uintptr_t address, std::uint64_t bytes, int file, std::uint64_t offset,
                   int protection);

/// Maps shared memory that is mapped at `from` a second time, over a range; forked children do not
/// inherit it.
bool map_again(std::uintptr_t address, std::uintptr_t from, std::uint64_t bytes);

/// Copies by memcpy, in pieces of 2 MiB as NVIDIA's driver does; skips pieces that hold only zeros:
/// `to` must be zero there already.
void copy_nonzero_pieces(void* to, const void* from, std::uint64_t bytes);

}  // namespace gcr::softgpu
