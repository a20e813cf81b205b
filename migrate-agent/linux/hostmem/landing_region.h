// The landing region: the memory of the destination that buffers land in, populated beforehand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "migrate-agent/linux/hostmem/hugepage_claim.h"
#include "migrate-agent/linux/hostmem/hugepage_policy.h"
#include "migrate-agent/linux/hostmem/memory_info.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::hostmem {

/// Owns the memory. Every page is populated: access can neither fail (SIGBUS) nor wait for the
/// kernel. Children do not inherit it, and core dumps leave it out. Move-only.
class LandingRegion {
 public:
  LandingRegion() = default;
  LandingRegion(LandingRegion&&) noexcept = default;
  LandingRegion& operator=(LandingRegion&& other) noexcept;

  /// Maps and populates `bytes` (0 gives an empty region) with up to 16 threads. Hugepages come
  /// from what is free, and beyond that, if `limits` allows, from raising the kernel's limit of
  /// surplus pages by what is missing until the region is destroyed. Fails with kResourceExhausted,
  /// naming sizes, if the memory or (kRequire) the hugepages cannot be allocated; nothing stays
  /// behind then.
  static Result<LandingRegion> create(std::uint64_t bytes, HugepagePolicy policy,
                                      const HugepageLimits& limits = {});

  /// The same in a file without a name, whose descriptor keeps the memory when the region is gone.
  static Result<LandingRegion> create_file(std::uint64_t bytes, HugepagePolicy policy,
                                           const HugepageLimits& limits = {});

  /// Maps `bytes` of a file that create_file() made, maybe in another process. Its pages are those
  /// of the file.
  static Result<LandingRegion> open(UniqueFd file, std::uint64_t bytes);

  /// Of the file; only after create_file() or open().
  int file() const { return file_.get(); }

  /// The memory, aligned to 2 MiB, zero at first, exactly as long as was asked for.
  std::span<std::byte> bytes() const { return mapping_.bytes().first(size_bytes_); }

  /// Whether every page is a hugepage of the kernel's pool.
  bool huge() const { return huge_; }

  /// Why these are ordinary pages, as a sentence without a full stop; empty if huge() or if
  /// hugepages were not requested.
  const std::string& note() const { return note_; }

 private:
  enum class Kind { kMemory, kFile };
  static Result<LandingRegion> make(std::uint64_t bytes, HugepagePolicy policy,
                                    const HugepageLimits& limits, Kind kind);
  /// By how much the limit of hugepages is raised.
  enum class Raise { kWhatIsMissing, kAll };
  static Result<LandingRegion> create_huge(std::uint64_t bytes, const HugepageLimits& limits);
  static Result<LandingRegion> create_huge(std::uint64_t bytes, const HugepageLimits& limits,
                                           Raise raise);
  static Result<LandingRegion> create_ordinary(std::uint64_t bytes, Kind kind);

  // Destroyed from the last to the first: the pages go back before the limit is lowered.
  HugepageClaim claim_;
  UniqueFd file_;
  UniqueMapping mapping_;
  std::uint64_t size_bytes_ = 0;
  bool huge_ = false;
  std::string note_;
};

}  // namespace gcr::hostmem
