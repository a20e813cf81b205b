// Reserves memory that migrations to this host are going to use, so that no two of them count on
// the same memory.
//
// Free memory shows what was allocated, not what is reserved. So each migration has a file in a
// common directory, named by its owner's PID and locked (flock) while the owner lives, with the
// amount that it has yet to allocate. To reserve more, a process adds up the files of living owners
// under the lock of the directory, and compares the sum with what is free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>

#include "migrate-agent/linux/hostmem/hugepage_policy.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "src/base/units.h"

namespace gcr::hostmem {

/// This much stays free for the host itself.
inline constexpr std::uint64_t kSpareMemoryBytes = 256 * kMiB;

struct Memory {
  std::uint64_t ordinary_bytes = 0;
  std::uint64_t huge_bytes = 0;  ///< as a need: of either kind; as what is free: of the pool alone

  bool operator==(const Memory&) const = default;
};

/// What `bytes` that land by this policy need.
constexpr Memory needed_for_landing(HugepagePolicy policy, std::uint64_t bytes) {
  return policy == HugepagePolicy::kNever ? Memory{.ordinary_bytes = bytes}
                                          : Memory{.huge_bytes = bytes};
}

/// What is left of `free` beside `needed`; what hugepages cannot hold is ordinary.
Memory left_of(const Memory& free, const Memory& needed);

/// Whether enough is left for the host itself.
bool is_enough(const Memory& free, const Memory& needed);

/// What the kernel says is free: MemAvailable, and free pages of the persistent hugepage pool.
Result<Memory> free_memory();

using LookAtMemory = std::function<Result<Memory>()>;

/// One migration's. Any thread; blocking.
class MemoryReservation {
 public:
  /// Nothing is reserved yet. Makes `directory` (0700) if it is missing.
  static Result<std::unique_ptr<MemoryReservation>> create(std::filesystem::path directory,
                                                           LookAtMemory look = free_memory);
  /// Releases what is left.
  ~MemoryReservation();
  MemoryReservation(const MemoryReservation&) = delete;
  MemoryReservation& operator=(const MemoryReservation&) = delete;

  /// Reserves `more`. kResourceExhausted, with sizes, if it is not free in addition to what
  /// others have reserved and what must stay free; then everything is as before.
  Status add(const Memory& more);

  /// This much of it is allocated now, and no longer counts as free.
  Status taken(const Memory& memory);

 private:
  MemoryReservation(std::filesystem::path directory, LookAtMemory look)
      : directory_(std::move(directory)), look_(std::move(look)) {}
  Status write(const Memory& memory);

  const std::filesystem::path directory_;
  const LookAtMemory look_;
  std::mutex mutex_;
  std::filesystem::path path_;
  UniqueFd file_;
  Memory reserved_;
};

/// Where an agent's migrations reserve.
inline std::filesystem::path reservations_in(const std::filesystem::path& runtime_dir) {
  return runtime_dir / "memory";
}

/// The sum of what living owners have reserved in `directory`; removes what dead owners had.
Result<Memory> reserved_memory(const std::filesystem::path& directory);

}  // namespace gcr::hostmem
