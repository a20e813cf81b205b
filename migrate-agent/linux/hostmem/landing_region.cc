// How a landing region gets hugepages. Under the lock of hugepage_claim.h it reads the kernel's
// counters, raises the limit of surplus pages by the number that is missing, and maps a file, for
// which the kernel reserves all pages at once or fails. Then, without the lock, all pages are
// populated by several threads. Programs that do not use the lock may take pages between the count
// and the mapping: so a second attempt raises the limit by all pages that are needed. If that fails
// too, the policy decides between ordinary pages and an error.
#include "migrate-agent/linux/hostmem/landing_region.h"

#include <fmt/format.h>
#include <linux/memfd.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "src/base/side_by_side.h"
#include "src/base/units.h"

namespace gcr::hostmem {
namespace {

constexpr std::size_t kMaxPopulateThreads = 16;
// Bytes that a populating thread takes at a time: small enough to balance the threads.
constexpr std::uint64_t kPopulateStepBytes = 64 * kMiB;

Status populate_range(std::span<std::byte> bytes) {
  while (::madvise(bytes.data(), bytes.size(), MADV_POPULATE_WRITE) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    // The kernel returns EFAULT where a page fault would raise SIGBUS: there is no hugepage left.
    const int reason = errno == EFAULT ? ENOMEM : errno;
    return Error::from_errno(reason, fmt::format("populating {}", format_bytes(bytes.size())));
  }
  return {};
}

/// Populates all of `bytes` with several threads.
Status populate(std::span<std::byte> bytes) {
  const std::uint64_t steps = round_up(bytes.size(), kPopulateStepBytes) / kPopulateStepBytes;
  return share_out(steps, kMaxPopulateThreads, [&](std::uint64_t step) {
    const std::uint64_t offset = step * kPopulateStepBytes;
    return populate_range(
        bytes.subspan(offset, std::min(kPopulateStepBytes, bytes.size() - offset)));
  });
}

/// Excludes the memory from children and core dumps.
Status keep_private(std::span<std::byte> bytes) {
  for (const int advice : {MADV_DONTFORK, MADV_DONTDUMP}) {
    if (::madvise(bytes.data(), bytes.size(), advice) != 0) {
      return Error::from_errno(errno, "preparing the landing region");
    }
  }
  return {};
}

/// Maps anonymous memory at an address that transparent hugepages can use.
Result<UniqueMapping> map_ordinary(std::uint64_t bytes) {
  const std::uint64_t room = bytes + kChunkBytes;
  void* at = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    return Error::from_errno(errno, fmt::format("mapping {}", format_bytes(bytes)));
  }
  auto* const first = static_cast<std::byte*>(at);
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const std::uint64_t before = round_up(address, kChunkBytes) - address;
  if (before > 0) ::munmap(first, before);
  if (before < kChunkBytes) ::munmap(first + before + bytes, kChunkBytes - before);
  return UniqueMapping(first + before, bytes);
}

}  // namespace

LandingRegion& LandingRegion::operator=(LandingRegion&& other) noexcept {
  if (this == &other) return *this;
  file_ = std::move(other.file_);
  mapping_ = std::move(other.mapping_);  // frees the pages before the claim on the limit
  claim_ = std::move(other.claim_);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  huge_ = std::exchange(other.huge_, false);
  note_ = std::exchange(other.note_, {});
  return *this;
}

Result<LandingRegion> LandingRegion::map_file(UniqueFd file, std::uint64_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (at == MAP_FAILED) {
    return Error::from_errno(errno, fmt::format("reserving {} in a memfd", format_bytes(bytes)));
  }
  LandingRegion region;
  region.file_ = std::move(file);
  region.mapping_ = UniqueMapping(at, bytes);
  return region;
}

/// Maps a new unnamed file. If `flags` ask for hugepages, the kernel reserves all of them now or
/// fails.
Result<LandingRegion> LandingRegion::map_new_file(std::uint64_t bytes, unsigned flags) {
  UniqueFd file(::memfd_create("gcr-landing", MFD_CLOEXEC | flags));
  if (!file) return Error::from_errno(errno, "creating a memfd");
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    return Error::from_errno(errno, "sizing a memfd");
  }
  return map_file(std::move(file), bytes);
}

Result<LandingRegion> LandingRegion::create_huge(std::uint64_t bytes, const HugepageLimits& limits,
                                                 Raise raise) {
  const std::uint64_t pages = bytes / kChunkBytes;
  HugepageClaim claim;
  LandingRegion region;
  {
    GCR_ASSIGN(const HugepageLock lock, HugepageLock::take(limits));
    GCR_ASSIGN(const HugepageCounters counters, hugepage_counters(limits.kernel_directory));
    const std::uint64_t available = raise == Raise::kAll ? 0 : counters.available();
    const std::uint64_t missing = raise == Raise::kAll ? pages : counters.missing(pages);
    if (missing > 0) {
      GCR_ASSIGN(const std::uint64_t memory, available_memory_bytes());
      if (!limits.may_raise || (pages - available) * kChunkBytes > memory) {
        return Error(
            Code::kResourceExhausted,
            fmt::format("{} hugepages of 2 MiB are needed, {} are free{}", pages, available,
                        limits.may_raise
                            ? fmt::format(", and only {} of memory are available for more",
                                          format_bytes(memory))
                            : ""));
      }
      GCR_ASSIGN(claim, HugepageClaim::add(limits, missing, lock));
    }
    GCR_ASSIGN(region, map_new_file(bytes, MFD_HUGETLB | MFD_HUGE_2MB));
    region.claim_ = std::move(claim);
  }
  GCR_TRY(keep_private(region.mapping_.bytes()));
  GCR_TRY(populate(region.mapping_.bytes()));
  region.huge_ = true;
  return region;
}

Result<LandingRegion> LandingRegion::create_ordinary(std::uint64_t bytes, Kind kind) {
  GCR_ASSIGN(const std::uint64_t available, available_memory_bytes());
  if (bytes > available) {
    return Error(Code::kResourceExhausted,
                 fmt::format("the landing region needs {}, {} of memory are available",
                             format_bytes(bytes), format_bytes(available)));
  }
  LandingRegion region;
  if (kind == Kind::kFile) {
    GCR_ASSIGN(region, map_new_file(bytes, 0));
  } else {
    GCR_ASSIGN(region.mapping_, map_ordinary(bytes));
  }
  const auto mapped = region.mapping_.bytes();
  (void)::madvise(mapped.data(), mapped.size(), MADV_HUGEPAGE);  // best effort
  GCR_TRY(keep_private(mapped));
  GCR_TRY(populate(mapped));
  return region;
}

Result<LandingRegion> LandingRegion::open(UniqueFd file, std::uint64_t bytes) {
  GCR_ASSIGN(LandingRegion region, map_file(std::move(file), round_up(bytes, kChunkBytes)));
  GCR_TRY(keep_private(region.mapping_.bytes()));
  region.size_bytes_ = bytes;
  return region;
}

Result<LandingRegion> LandingRegion::create(std::uint64_t bytes, HugepagePolicy policy,
                                            const HugepageLimits& limits, Kind kind) {
  if (bytes == 0) return LandingRegion();
  if (bytes > (std::uint64_t{1} << 46)) {
    return Error(Code::kInvalidArgument,
                 fmt::format("a landing region of {} is too large", format_bytes(bytes)));
  }
  const std::uint64_t whole = round_up(bytes, kChunkBytes);
  std::string note;
  if (policy != HugepagePolicy::kNever) {
    auto region = create_huge(whole, limits, Raise::kWhatIsMissing);
    if (!region && limits.may_raise) {
      // Programs that do not use our lock may have taken hugepages since they were counted.
      auto again = create_huge(whole, limits, Raise::kAll);
      if (again) region = std::move(again);
    }
    if (region) {
      if (kind == Kind::kMemory)
        region->file_.reset();  // an open file would keep the memory after unmapping
      region->size_bytes_ = bytes;
      return region;
    }
    if (policy == HugepagePolicy::kRequire) {
      return Error(Code::kResourceExhausted,
                   fmt::format("no hugepages for a landing region of {}: {}", format_bytes(bytes),
                               region.error().message()));
    }
    note = fmt::format("ordinary pages: {}", region.error().message());
  }
  GCR_ASSIGN(LandingRegion region, create_ordinary(whole, kind));
  region.size_bytes_ = bytes;
  region.note_ = std::move(note);
  return region;
}

}  // namespace gcr::hostmem
