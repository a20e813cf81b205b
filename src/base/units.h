// Sizes that the whole project uses, and conversions of sizes and times to numbers and text.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace gcr {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

/// A chunk is the unit that is digested and sent: 2 MiB, also the size of a hugepage and the
/// driver's allocation granularity.
inline constexpr std::uint64_t kChunkBytes = 2 * kMiB;

/// Maximum number of VRAM buffers in one migration.
inline constexpr std::uint32_t kMaxBuffers = 65'536;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Converts to milliseconds, the unit of times in reports, messages and journals.
inline double in_milliseconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

/// Formats a size for people: "512 B", "64 MiB", "1.5 GiB".
std::string format_bytes(std::uint64_t bytes);

}  // namespace gcr
