#include "preload/checkpoint_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "preload/elf_object.h"
#include "preload/shared_copy.h"
#include "src/base/zeros.h"

namespace gcr::preload::checkpoint_memory {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
/// Smaller copies are not worth a second thread.
constexpr std::size_t kLargeCopyBytes = std::size_t{512} << 10;

// ---- Mappings ----

struct Mapping {
  std::uintptr_t start;
  std::uintptr_t end;
};

/// Mappings that map() has made since the calls were intercepted.
constinit Mapping g_mappings[16] = {};
constinit std::atomic<std::size_t> g_mapping_count{0};

void note(void* start, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(start);
  const std::size_t at = g_mapping_count.load(std::memory_order_relaxed);
  if (at == std::size(g_mappings)) return;
  g_mappings[at] = {first, first + bytes};
  g_mapping_count.store(at + 1, std::memory_order_release);
}

bool is_ours(const void* start, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(start);
  const auto known = std::span(g_mappings).first(g_mapping_count.load(std::memory_order_acquire));
  return std::ranges::any_of(known, [&](const Mapping& mapping) {
    return mapping.start <= first && first + bytes <= mapping.end;
  });
}

/// Replaces mmap: maps a checkpoint's memory unpopulated and marks it for huge pages.
void* map(void* address, std::size_t bytes, int protection, int flags, int fd, off_t offset) {
  const bool is_for_a_checkpoint = flags == (MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE) &&
                                   address == nullptr && bytes >= kHugePageBytes &&
                                   protection == (PROT_READ | PROT_WRITE);
  if (!is_for_a_checkpoint) return ::mmap(address, bytes, protection, flags, fd, offset);
  void* const mapped = ::mmap(nullptr, bytes, protection, flags & ~MAP_POPULATE, -1, 0);
  if (mapped == MAP_FAILED) return mapped;
  const int error = errno;
  ::madvise(mapped, bytes, MADV_HUGEPAGE);
  errno = error;
  note(mapped, bytes);
  return mapped;
}

// ---- Copies ----

void copy_all(void*, char* to, const char* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

/// Tells from /proc/self/pagemap which pages of private, anonymous memory were written to. A page
/// that is neither present nor swapped out reads as zeros.
class TouchedPages {
 public:
  explicit TouchedPages(int pagemap) : pagemap_(pagemap) {}

  bool contains(std::uintptr_t page) {
    if (page < first_ || page - first_ >= kPagesAtOnce) load(page);
    return (entries_[page - first_] & kIsThere) != 0;
  }

 private:
  static constexpr std::size_t kPagesAtOnce = 64;
  static constexpr std::uint64_t kIsThere = std::uint64_t{3} << 62;

  void load(std::uintptr_t page) {
    first_ = page;
    // The system call, because libc's pread() is a cancellation point.
    const long got =
        ::syscall(SYS_pread64, pagemap_, entries_, sizeof(entries_), page * sizeof(entries_[0]));
    if (got == static_cast<long>(sizeof(entries_))) return;
    std::ranges::fill(entries_, kIsThere);
  }

  int pagemap_;
  std::uintptr_t first_ = UINTPTR_MAX;
  std::uint64_t entries_[kPagesAtOnce];
};

/// Copies, but skips zeros for target pages that are still untouched. `context` points to a
/// descriptor of this process's pagemap. The target must be memory from map().
void copy_without_zeros(void* context, char* to, const char* from, std::size_t bytes) {
  TouchedPages touched(*static_cast<const int*>(context));
  while (bytes > 0) {
    const auto address = reinterpret_cast<std::uintptr_t>(to);
    const std::size_t part = std::min(bytes, kPageBytes - address % kPageBytes);
    if (touched.contains(address / kPageBytes) || !is_zero(std::as_bytes(std::span(from, part))))
      std::memcpy(to, from, part);
    to += part;
    from += part;
    bytes -= part;
  }
}

/// Replaces memcpy: shares large copies among threads.
void* copy(void* to, const void* from, std::size_t bytes) {
  if (bytes < kLargeCopyBytes) return std::memcpy(to, from, bytes);
  const int error = errno;
  int pagemap = is_ours(to, bytes) ? ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC) : -1;
  if (pagemap >= 0) {
    copy_together(copy_without_zeros, &pagemap, to, from, bytes);
    ::close(pagemap);
  } else {
    copy_together(copy_all, nullptr, to, from, bytes);
  }
  errno = error;
  return to;
}

// ---- The driver's calls ----

class Call {
 public:
  explicit constexpr Call(const char* name) : name_(name) {}

  void find_in(const ElfObject& object, const dl_phdr_info& info) {
    void** const slot = object.find_call(name_);
    __atomic_store_n(&read_only_, is_read_only(info, slot), __ATOMIC_RELAXED);
    __atomic_store_n(&slot_, slot, __ATOMIC_RELEASE);
  }

  void intercept(void* ours) {
    void** const slot = __atomic_load_n(&slot_, __ATOMIC_ACQUIRE);
    if (slot == nullptr || theirs_ != nullptr) return;
    theirs_ = *slot;
    store(ours);
  }

  void restore() {
    if (theirs_ != nullptr) store(theirs_);
    theirs_ = nullptr;
  }

 private:
  void store(void* function) const { store_pointer(slot_, function, read_only_); }

  const char* name_;
  void** slot_ = nullptr;  ///< null: the driver does not call this function
  bool read_only_ = false;
  void* theirs_ = nullptr;  ///< the original function, while the call is intercepted
};

constinit Call g_mmap("mmap");
constinit Call g_mmap64("mmap64");
constinit Call g_memcpy("memcpy");

}  // namespace

void find_calls(std::string_view soname) {
  visit_objects([&](const ElfObject& object, const dl_phdr_info& info) {
    if (object.soname() != soname) return false;
    for (Call* const call : {&g_mmap, &g_mmap64, &g_memcpy}) call->find_in(object, info);
    return true;
  });
}

void intercept_calls() {
  const int error = errno;
  g_mapping_count.store(0, std::memory_order_relaxed);
  g_mmap.intercept(reinterpret_cast<void*>(&map));
  g_mmap64.intercept(reinterpret_cast<void*>(&map));
  g_memcpy.intercept(reinterpret_cast<void*>(&copy));
  errno = error;
}

void restore_calls() {
  const int error = errno;
  for (Call* const call : {&g_mmap, &g_mmap64, &g_memcpy}) call->restore();
  errno = error;
}

}  // namespace gcr::preload::checkpoint_memory
