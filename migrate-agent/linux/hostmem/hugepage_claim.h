// Raises the limit of surplus hugepages while they are needed, and restores it.
//
// Several workers may do so concurrently, and one may die without restoring anything. So each claim
// is a file in a common directory with the number of pages that it added to the limit; its owner
// holds a lock (flock) on it. The limit changes only under the lock of that directory, and each
// process that takes this lock first subtracts the claims of dead owners.
#pragma once

#include <cstdint>
#include <string>

#include "migrate-agent/linux/hostmem/memory_info.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::hostmem {

/// Where claims are stored and which limit they change; other values are for tests.
struct HugepageLimits {
  bool may_raise = true;  ///< false: never raise the kernel's limit
  std::string state_directory = "/run/gcr-migrate/hugepages";
  std::string kernel_directory = kHugepageDirectory;
};

/// The lock of the state directory. Held from reading the counters until the mapping that needs the
/// pages has reserved them. Move-only; the destructor unlocks.
class HugepageLock {
 public:
  /// Waits for the lock, then subtracts the claims of dead owners. Creates the directory (0700).
  static Result<HugepageLock> take(const HugepageLimits& limits);

 private:
  explicit HugepageLock(UniqueFd file) : file_(std::move(file)) {}
  UniqueFd file_;
};

/// Pages added to the limit; the destructor subtracts them. Move-only; empty means none.
class HugepageClaim {
 public:
  HugepageClaim() = default;
  HugepageClaim(HugepageClaim&& other) noexcept { *this = std::move(other); }
  HugepageClaim& operator=(HugepageClaim&& other) noexcept;
  ~HugepageClaim() { release(); }

  /// Adds `pages` to the limit. The caller holds the lock. On failure the limit is unchanged.
  static Result<HugepageClaim> add(const HugepageLimits& limits, std::uint64_t pages,
                                   const HugepageLock& lock);

  std::uint64_t pages() const { return pages_; }

 private:
  void release();

  HugepageLimits limits_;
  std::string path_;
  UniqueFd file_;
  std::uint64_t pages_ = 0;
};

}  // namespace gcr::hostmem
