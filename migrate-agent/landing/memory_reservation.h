// Memory that migrations to this host are going to take, so that no two of them count on the same.
//
// What is free shows what was taken, not what was promised. So each migration has a file in a
// common directory, locked (flock) by its owner while it lives, which says how much it has still to
// take; whoever wants more adds up the files of the living under the lock of the directory, and
// compares the sum with what is free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>

#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "src/base/units.h"

namespace gcr::landing {

/// This much stays free for the host itself.
inline constexpr std::uint64_t kSpareMemoryBytes = 256 * kMiB;

struct Memory {
  std::uint64_t ordinary_bytes = 0;
  std::uint64_t huge_bytes = 0;  ///< as a need: of either kind; as what is free: of the pool alone

  bool operator==(const Memory&) const = default;
};

/// What the kernel says is free: MemAvailable, and free pages of the persistent hugepage pool.
Result<Memory> free_memory();

using LookAtMemory = std::function<Result<Memory>()>;

/// One migration's. Any thread; blocking.
class MemoryReservation {
 public:
  /// Nothing is reserved yet. Makes `directory` (0700) if it is missing.
  static Result<std::unique_ptr<MemoryReservation>> create(std::filesystem::path directory,
                                                           LookAtMemory look = free_memory);
  /// Gives back what is left.
  ~MemoryReservation();
  MemoryReservation(const MemoryReservation&) = delete;
  MemoryReservation& operator=(const MemoryReservation&) = delete;

  /// Reserves `more`. kResourceExhausted, with sizes, if it is not free beside what others have
  /// reserved and what stays free; then everything is as before.
  Status add(const Memory& more);

  /// So much of it is in use now, and shows in what is free.
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

/// What the living have reserved in `directory`, all together; forgets what the dead had.
Result<Memory> reserved_memory(const std::filesystem::path& directory);

}  // namespace gcr::landing
