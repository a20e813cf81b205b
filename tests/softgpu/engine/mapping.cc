#include "tests/softgpu/engine/mapping.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "src/base/units.h"
#include "src/base/zeros.h"

namespace gcr::softgpu {
namespace {

constexpr int kReserveFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
constexpr std::uint64_t kPieceBytes = 2 * kMiB;

}  // namespace

std::uintptr_t reserve_addresses(std::uint64_t bytes, std::uint64_t alignment,
                                 std::uintptr_t hint) {
  if (hint != 0 && hint % alignment == 0) {
    void* at = ::mmap(reinterpret_cast<void*>(hint), bytes, PROT_NONE,
                      kReserveFlags | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == reinterpret_cast<void*>(hint)) return hint;
    if (at != MAP_FAILED) ::munmap(at, bytes);
  }
  const std::uint64_t slack = alignment > kPageBytes ? alignment : 0;
  void* raw = ::mmap(nullptr, bytes + slack, PROT_NONE, kReserveFlags, -1, 0);
  if (raw == MAP_FAILED) return 0;
  const auto base = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t start = slack == 0 ? base : (base + alignment - 1) / alignment * alignment;
  if (start > base) ::munmap(raw, start - base);
  const std::uintptr_t end = base + bytes + slack;
  if (end > start + bytes) {
    ::munmap(reinterpret_cast<void*>(start + bytes), end - start - bytes);
  }
  return start;
}

bool make_reserved(std::uintptr_t address, std::uint64_t bytes) {
  return ::mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, kReserveFlags | MAP_FIXED, -1,
                0) != MAP_FAILED;
}

bool map_file_over(std::uintptr_t address, std::uint64_t bytes, int file, std::uint64_t offset,
                   int protection) {
  void* at = reinterpret_cast<void*>(address);
  if (::mmap(at, bytes, protection, MAP_SHARED | MAP_FIXED, file, static_cast<off_t>(offset)) ==
      MAP_FAILED) {
    return false;
  }
  ::madvise(at, bytes, MADV_DONTFORK);
  return true;
}

bool map_again(std::uintptr_t address, std::uintptr_t from, std::uint64_t bytes) {
  void* const at = reinterpret_cast<void*>(address);
  // With a length of 0, shared memory is mapped once more, and its first mapping stays.
  if (::mremap(reinterpret_cast<void*>(from), 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) ==
      MAP_FAILED) {
    return false;
  }
  ::madvise(at, bytes, MADV_DONTFORK);
  return true;
}

void copy_nonzero_pieces(void* to, const void* from, std::uint64_t bytes) {
  const char* source = static_cast<const char*>(from);
  char* target = static_cast<char*>(to);
  for (std::uint64_t at = 0; at < bytes; at += kPieceBytes) {
    const std::uint64_t piece = std::min(kPieceBytes, bytes - at);
    if (!is_zero(std::as_bytes(std::span(source + at, piece)))) {
      std::memcpy(target + at, source + at, piece);
    }
  }
}

}  // namespace gcr::softgpu
