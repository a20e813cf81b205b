// /proc/PID/pagemap: its entries, of 64 bits for each page, and its ioctl PAGEMAP_SCAN, which
// linux/fs.h has since 6.7; after Documentation/admin-guide/mm/pagemap.rst in the kernel's sources.
#pragma once

#include <sys/ioctl.h>

#include <cstdint>

namespace gcr::pagemap {

struct Region {
  std::uint64_t start;
  std::uint64_t end;
  std::uint64_t categories;
};

struct ScanArguments {
  std::uint64_t size, flags, start, end;
  std::uint64_t walk_end;  ///< out: where the scan ended
  std::uint64_t vec, vec_len, max_pages;
  std::uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};

inline constexpr unsigned long kScan = _IOWR('f', 16, ScanArguments);

// Bits of an entry.
inline constexpr std::uint64_t kEntryPresent = 1ull << 63;
inline constexpr std::uint64_t kEntrySwapped = 1ull << 62;
inline constexpr std::uint64_t kEntryFileOrShared = 1ull << 61;

// Flags.
inline constexpr std::uint64_t kProtectMatching = 1 << 0;  ///< against writes, by the userfaultfd
inline constexpr std::uint64_t kNeedsAsync = 1 << 1;  ///< EPERM where no userfaultfd tracks writes

// Categories of pages.
inline constexpr std::uint64_t kIsWritten = 1 << 1;  ///< since it was protected
inline constexpr std::uint64_t kIsFile = 1 << 2;
inline constexpr std::uint64_t kIsPresent = 1 << 3;
inline constexpr std::uint64_t kIsSwapped = 1 << 4;
inline constexpr std::uint64_t kIsTheZeroPage = 1 << 5;
inline constexpr std::uint64_t kIsGuard = 1 << 8;

}  // namespace gcr::pagemap
