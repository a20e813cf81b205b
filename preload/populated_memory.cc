// mmap and mmap64, exported: the host memory that a control checkpoint fills is made faster.
//
// NVIDIA's driver (580) asks for all of it by one private, anonymous mapping that is populated
// (MAP_POPULATE): the kernel then makes one page of 4 KiB after the other, on the driver's thread,
// for as long as the copy out of the GPU takes. While the gate is closed, such a mapping is made
// empty, marked for huge pages, and populated by several threads. All other calls go on as they
// are.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "preload/gate.h"
#include "preload/quiet_thread.h"

#ifndef MADV_POPULATE_WRITE  // since Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif

namespace gcr::preload {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
/// Less is not worth a thread.
constexpr std::size_t kPieceBytes = 8 * kHugePageBytes;
constexpr std::size_t kMostThreads = 8;

using Mmap = void* (*)(void*, std::size_t, int, int, int, off_t);

/// The next definitions after this library. Null before its constructors ran: then the kernel is
/// asked itself.
constinit Mmap g_mmap = nullptr;
constinit Mmap g_mmap64 = nullptr;

[[gnu::constructor]] void find_next() {
  g_mmap = reinterpret_cast<Mmap>(::dlsym(RTLD_NEXT, "mmap"));
  g_mmap64 = reinterpret_cast<Mmap>(::dlsym(RTLD_NEXT, "mmap64"));
}

/// Memory that several threads populate piece by piece.
struct Populated {
  const std::uintptr_t start;
  const std::uintptr_t end;
  std::atomic<std::uintptr_t> next;  ///< a multiple of a huge page
};

/// What cannot be populated, the driver populates when it writes to it, or fails as it would.
void* populate(void* argument) {
  Populated& memory = *static_cast<Populated*>(argument);
  for (;;) {
    const std::uintptr_t piece = memory.next.fetch_add(kPieceBytes);
    if (piece >= memory.end) return nullptr;
    const std::uintptr_t from = std::max(piece, memory.start);
    const std::uintptr_t to = std::min(piece + kPieceBytes, memory.end);
    ::madvise(reinterpret_cast<void*>(from), to - from, MADV_POPULATE_WRITE);
  }
}

std::size_t processors() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

void populate_together(void* start, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(start);
  Populated memory{first, first + bytes, first / kHugePageBytes * kHugePageBytes};
  pthread_t threads[kMostThreads];
  const std::size_t wanted = std::min({kMostThreads, processors(), bytes / kPieceBytes + 1}) - 1;
  std::size_t started = 0;
  while (started < wanted &&
         start_quiet_thread("gcr-populate", populate, &memory, &threads[started])) {
    ++started;
  }
  populate(&memory);
  for (std::size_t i = 0; i < started; ++i) ::pthread_join(threads[i], nullptr);
}

bool is_for_a_checkpoint(const void* address, std::size_t bytes, int protection, int flags) {
  return flags == (MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE) && address == nullptr &&
         bytes >= kHugePageBytes && protection == (PROT_READ | PROT_WRITE) && gate::is_closed();
}

void* map(Mmap next, void* address, std::size_t bytes, int protection, int flags, int fd,
          off_t offset) {
  const bool populated_here = is_for_a_checkpoint(address, bytes, protection, flags);
  if (populated_here) flags &= ~MAP_POPULATE;
  void* const mapped = next != nullptr
                           ? next(address, bytes, protection, flags, fd, offset)
                           : reinterpret_cast<void*>(::syscall(SYS_mmap, address, bytes, protection,
                                                               flags, fd, offset));
  if (!populated_here || mapped == MAP_FAILED) return mapped;
  const int error = errno;
  ::madvise(mapped, bytes, MADV_HUGEPAGE);
  populate_together(mapped, bytes);
  errno = error;
  return mapped;
}

}  // namespace
}  // namespace gcr::preload

extern "C" {

__attribute__((visibility("default"))) void* mmap(void* address, std::size_t bytes, int protection,
                                                  int flags, int fd, off_t offset) noexcept {
  return gcr::preload::map(gcr::preload::g_mmap, address, bytes, protection, flags, fd, offset);
}

__attribute__((visibility("default"))) void* mmap64(void* address, std::size_t bytes,
                                                    int protection, int flags, int fd,
                                                    off_t offset) noexcept {
  return gcr::preload::map(gcr::preload::g_mmap64, address, bytes, protection, flags, fd, offset);
}
}
