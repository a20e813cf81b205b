// Reserves memory for migrations to this host, so that no two of them count on the same memory.
//
// Free memory shows what is allocated, not what is reserved. So each migration has a file in a
// common directory, named by its owner's PID and locked (flock) while the owner lives, with the
// amount that it has yet to allocate. To reserve more, a process takes the lock of the directory,
// adds up the files of living owners, and compares the sum with the free memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>

#include "migrate-agent/linux/hostmem/memory_info.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "src/base/units.h"

namespace gcr::hostmem {

/// Memory that stays free for the host itself.
inline constexpr std::uint64_t kSpareMemoryBytes = 256 * kMiB;

struct Memory {
  std::uint64_t ordinary_bytes = 0;
  std::uint64_t huge_bytes =
      0;  ///< as a need: pages of either kind; as free memory: of the pool only

  bool operator==(const Memory&) const = default;
};

/// Returns the memory that `bytes` need in a landing region with this policy.
constexpr Memory needed_for_landing(HugepagePolicy policy, std::uint64_t bytes) {
  return policy == HugepagePolicy::kNever ? Memory{.ordinary_bytes = bytes}
                                          : Memory{.huge_bytes = bytes};
}

/// Subtracts `needed` from `free`; what hugepages cannot hold is taken from ordinary memory.
Memory left_of(const Memory& free, const Memory& needed);

/// Returns whether `free` holds `needed` and the memory for the host itself.
bool is_enough(const Memory& free, const Memory& needed);

/// Returns the free memory: MemAvailable, and free pages of the persistent hugepage pool.
Result<Memory> free_memory();

using ReadFreeMemory = std::function<Result<Memory>()>;

/// The reservation of one migration. Any thread; blocking.
class MemoryReservation {
 public:
  /// Creates an empty reservation, and `directory` (0700) if it is missing.
  static Result<std::unique_ptr<MemoryReservation>> create(std::filesystem::path directory,
                                                           ReadFreeMemory read_free = free_memory);
  /// Releases the rest of the reservation.
  ~MemoryReservation();
  MemoryReservation(const MemoryReservation&) = delete;
  MemoryReservation& operator=(const MemoryReservation&) = delete;

  /// Reserves `more`. kResourceExhausted, with sizes, if free memory does not suffice for it, the
  /// other reservations and the host itself; then nothing is changed.
  Status add(const Memory& more);

  /// Reduces the reservation by memory that is now allocated, and so no longer counts as free.
  Status taken(const Memory& memory);

 private:
  MemoryReservation(std::filesystem::path directory, ReadFreeMemory read_free)
      : directory_(std::move(directory)), read_free_(std::move(read_free)) {}
  Status write(const Memory& memory);

  const std::filesystem::path directory_;
  const ReadFreeMemory read_free_;
  std::mutex mutex_;
  std::filesystem::path path_;
  UniqueFd file_;
  Memory reserved_;
};

/// Returns the directory of the reservations of an agent's migrations.
inline std::filesystem::path reservations_in(const std::filesystem::path& runtime_dir) {
  return runtime_dir / "memory";
}

/// Returns the sum of the reservations of living owners in `directory`; removes those of dead
/// owners.
Result<Memory> reserved_memory(const std::filesystem::path& directory);

}  // namespace gcr::hostmem
