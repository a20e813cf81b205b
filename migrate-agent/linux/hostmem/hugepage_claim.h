// Raises the limit of surplus hugepages for as long as they are needed, and restores it.
//
// Several workers may do so at once, and one may die without restoring anything. So each claim is a
// file in a common directory, locked (flock) by its owner while that lives, with the number of
// pages that the claim added. The limit changes only under the lock of that directory, and each
// process that takes the lock first subtracts what the claims of dead owners had added.
#pragma once

#include <cstdint>
#include <string>

#include "migrate-agent/linux/hostmem/memory_info.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::hostmem {

/// Where claims are kept and what they change; other values are for tests.
struct HugepageLimits {
  bool may_raise = true;  ///< false: the kernel's limits stay as they are
  std::string state_directory = "/run/gcr-migrate/hugepages";
  std::string kernel_directory = kHugepageDirectory;
};

/// The lock of the state directory. Held from reading the counters until the mapping that needs the
/// pages has reserved them. Move-only; unlocks at its end.
class HugepageLock {
 public:
  /// Waits for the lock; then subtracts what dead owners had added. Creates the directory (0700).
  static Result<HugepageLock> take(const HugepageLimits& limits);

 private:
  explicit HugepageLock(UniqueFd file) : file_(std::move(file)) {}
  UniqueFd file_;
};

/// Pages added to the limit; its destructor subtracts them again. Move-only; empty means none.
class HugepageClaim {
 public:
  HugepageClaim() = default;
  HugepageClaim(HugepageClaim&& other) noexcept { *this = std::move(other); }
  HugepageClaim& operator=(HugepageClaim&& other) noexcept;
  ~HugepageClaim() { release(); }

  /// Adds `pages` to the limit. The caller holds the lock. On failure the limit is as before.
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
