// The landing region: the destination's memory that receives buffers, populated in advance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "migrate-agent/linux/hostmem/hugepage_claim.h"
#include "migrate-agent/linux/hostmem/memory_info.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::hostmem {

/// Owns the memory. All pages are populated: an access can neither fail (SIGBUS) nor wait for the
/// kernel. Children do not inherit it, and core dumps omit it. Move-only.
class LandingRegion {
 public:
  LandingRegion() = default;
  LandingRegion(LandingRegion&&) noexcept = default;
  LandingRegion& operator=(LandingRegion&& other) noexcept;

  /// kFile: in an unnamed file, whose descriptor keeps the memory alive after the region.
  enum class Kind { kMemory, kFile };

  /// Maps and populates `bytes` (0 gives an empty region) with up to 16 threads. Takes free
  /// hugepages; if they do not suffice and `limits` allows it, raises the kernel's limit of surplus
  /// pages by the number that is missing until the region is destroyed. kResourceExhausted, with
  /// sizes, if the memory or (kRequire) the hugepages cannot be allocated; then nothing is left
  /// behind.
  static Result<LandingRegion> create(std::uint64_t bytes, HugepagePolicy policy,
                                      const HugepageLimits& limits = {}, Kind kind = Kind::kMemory);

  /// Maps `bytes` of a region's file, which maybe another process made. Its pages are those of the
  /// file.
  static Result<LandingRegion> open(UniqueFd file, std::uint64_t bytes);

  /// Returns the descriptor of the file; only of kFile and after open().
  int file() const { return file_.get(); }

  /// Returns the memory, aligned to 2 MiB, initially zero, exactly as long as requested.
  std::span<std::byte> bytes() const { return mapping_.bytes().first(size_bytes_); }

  /// Returns whether every page is a hugepage of the kernel's pool.
  bool huge() const { return huge_; }

  /// Returns why the pages are ordinary ones, as a sentence without a full stop; empty if huge() or
  /// if hugepages were not requested.
  const std::string& note() const { return note_; }

 private:
  /// How far the limit of hugepages is raised: by the missing pages, or by all that are needed.
  enum class Raise { kWhatIsMissing, kAll };
  static Result<LandingRegion> create_huge(std::uint64_t bytes, const HugepageLimits& limits,
                                           Raise raise);
  static Result<LandingRegion> map_file(UniqueFd file, std::uint64_t bytes);
  static Result<LandingRegion> map_new_file(std::uint64_t bytes, unsigned flags);
  static Result<LandingRegion> create_ordinary(std::uint64_t bytes, Kind kind);

  // Members are destroyed in reverse order: the pages are freed before the limit is lowered.
  HugepageClaim claim_;
  UniqueFd file_;
  UniqueMapping mapping_;
  std::uint64_t size_bytes_ = 0;
  bool huge_ = false;
  std::string note_;
};

}  // namespace gcr::hostmem
