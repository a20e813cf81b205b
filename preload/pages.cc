#include "preload/pages.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

namespace gcr::preload::pages {
namespace {

/// End of the user address space with five levels of page tables (exclusive).
constexpr std::uint64_t kUserSpaceEnd = 1ull << 56;

/// The stack of the door's thread, including its thread-local storage.
struct Stack {
  std::uint64_t start = 0;
  std::uint64_t end = 0;
};
constinit Stack g_stack;

/// Whether the range is whole pages of user space that do not overlap the stack of the door's
/// thread.
bool is_acceptable(std::uint64_t address, std::uint64_t length, std::uint64_t page_bytes) {
  if (address == 0 || length == 0 || address % page_bytes != 0 || length % page_bytes != 0) {
    return false;
  }
  if (address >= kUserSpaceEnd || length > kUserSpaceEnd - address || g_stack.end == 0) {
    return false;
  }
  return address >= g_stack.end || address + length <= g_stack.start;
}

}  // namespace

void note_own_stack() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
  void* start = nullptr;
  std::size_t bytes = 0;
  if (pthread_attr_getstack(&attributes, &start, &bytes) == 0) {
    g_stack.start = reinterpret_cast<std::uintptr_t>(start);
    g_stack.end = g_stack.start + bytes;
  }
  pthread_attr_destroy(&attributes);
}

runtime::Ending advise(door::Op op, std::span<const std::uint64_t> numbers,
                       std::uint64_t* advised_bytes) {
  const int advice = op == door::Op::kDropPages ? MADV_DONTNEED : MADV_HUGEPAGE;
  const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  *advised_bytes = 0;
  if (numbers.size() % 2 != 0) return {door::Outcome::kBadRequest};
  for (std::size_t i = 0; i < numbers.size(); i += 2) {
    if (!is_acceptable(numbers[i], numbers[i + 1], page_bytes)) {
      return {door::Outcome::kBadRequest, 0, numbers[i]};
    }
  }
  const int saved_errno = errno;
  for (std::size_t i = 0; i < numbers.size(); i += 2) {
    if (::madvise(reinterpret_cast<void*>(numbers[i]), numbers[i + 1], advice) != 0) {
      errno = saved_errno;
      return {door::Outcome::kNotFound, 0, numbers[i]};
    }
    *advised_bytes += numbers[i + 1];
  }
  return {};
}

}  // namespace gcr::preload::pages
