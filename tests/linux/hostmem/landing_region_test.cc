// The landing region on the machine's own kernel, and the accounting of claims with fake counters.
#include "migrate-agent/linux/hostmem/landing_region.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/mman.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "src/base/units.h"

namespace gcr::hostmem {
namespace {

namespace fs = std::filesystem;

/// A directory per test, with a claims folder and counters that a test writes.
class LandingTest : public testing::Test {
 protected:
  LandingTest() {
    std::string name = (fs::temp_directory_path() / "gcr-landing-XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
    limits_.state_directory = directory_ / "claims";
  }
  ~LandingTest() override { fs::remove_all(directory_); }

  /// Makes the region code read and change these counters instead of the kernel's.
  void pretend(std::uint64_t free, std::uint64_t reserved, std::uint64_t surplus,
               std::uint64_t overcommit) {
    limits_.kernel_directory = directory_;
    const std::pair<const char*, std::uint64_t> files[] = {{"free_hugepages", free},
                                                           {"resv_hugepages", reserved},
                                                           {"surplus_hugepages", surplus},
                                                           {"nr_overcommit_hugepages", overcommit}};
    for (const auto& [name, value] : files) std::ofstream(directory_ / name) << value << "\n";
  }
  std::uint64_t pretended_limit() const {
    return read_number(directory_ / "nr_overcommit_hugepages").value();
  }

  fs::path directory_;
  HugepageLimits limits_;
};

std::uint64_t kernel_limit() { return hugepage_counters().value().overcommit; }

bool writable_and_zero_before(std::span<std::byte> bytes) {
  const bool zero =
      std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
  std::fill(bytes.begin(), bytes.end(), std::byte{0x5a});
  return zero;
}

TEST_F(LandingTest, FileKeepsTheMemoryOfADestroyedRegion) {
  for (const HugepagePolicy policy : {HugepagePolicy::kNever, HugepagePolicy::kAuto}) {
    auto region = LandingRegion::create(3 * kMiB, policy, {}, LandingRegion::Kind::kFile);
    ASSERT_TRUE(region) << region.error().message();
    EXPECT_TRUE(writable_and_zero_before(region->bytes()));
    const UniqueFd file(::fcntl(region->file(), F_DUPFD_CLOEXEC, 0));
    *region = LandingRegion();
    const UniqueMapping again(::mmap(nullptr, 4 * kMiB, PROT_READ, MAP_SHARED, file.get(), 0),
                              4 * kMiB);
    EXPECT_EQ(again.bytes()[3 * kMiB - 1], std::byte{0x5a});
  }
}

TEST_F(LandingTest, OrdinaryPagesAreZeroWritableAndAligned) {
  auto region = LandingRegion::create(5 * kMiB + 7, HugepagePolicy::kNever, limits_);
  ASSERT_TRUE(region) << region.error().message();
  EXPECT_EQ(region->bytes().size(), 5 * kMiB + 7);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region->bytes().data()) % kChunkBytes, 0U);
  EXPECT_FALSE(region->huge());
  EXPECT_TRUE(region->note().empty());
  EXPECT_TRUE(writable_and_zero_before(region->bytes()));
}

TEST_F(LandingTest, HugepageLimitIsRaisedAndRestored) {
  const std::uint64_t before = kernel_limit();
  const std::uint64_t bytes = free_hugepage_bytes().value() + 3 * kChunkBytes;
  {
    auto region = LandingRegion::create(bytes, HugepagePolicy::kRequire, limits_);
    ASSERT_TRUE(region) << region.error().message();
    EXPECT_TRUE(region->huge());
    EXPECT_EQ(region->note(), "");
    EXPECT_EQ(kernel_limit(), before + 3);
    EXPECT_TRUE(writable_and_zero_before(region->bytes()));
  }
  EXPECT_EQ(kernel_limit(), before);
}

TEST_F(LandingTest, EachOfTwoRegionsRestoresItsShareOfTheLimit) {
  const std::uint64_t before = kernel_limit();
  const std::uint64_t free = free_hugepage_bytes().value();
  auto first = LandingRegion::create(free + 2 * kChunkBytes, HugepagePolicy::kRequire, limits_);
  ASSERT_TRUE(first) << first.error().message();
  auto second = LandingRegion::create(4 * kChunkBytes, HugepagePolicy::kRequire, limits_);
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_EQ(kernel_limit(), before + 6);
  *first = LandingRegion();
  EXPECT_EQ(kernel_limit(), before + 4);
  *second = LandingRegion();
  EXPECT_EQ(kernel_limit(), before);
}

/// The kernel closes the descriptors of an ending process one after the other, and each takes time
/// to free its pages: the next owner may find the claim released while the pages are still in use.
TEST_F(LandingTest, PagesFreedLateDoNotBlockTheNextRegion) {
  const std::uint64_t before = kernel_limit();
  const std::string limit = std::string(kHugepageDirectory) + "/nr_overcommit_hugepages";
  auto beyond = LandingRegion::create(free_hugepage_bytes().value() + 8 * kChunkBytes,
                                      HugepagePolicy::kRequire, limits_);
  ASSERT_TRUE(beyond) << beyond.error().message();
  ASSERT_TRUE(write_number(limit, before));
  {
    auto region = LandingRegion::create(8 * kChunkBytes, HugepagePolicy::kRequire, limits_);
    ASSERT_TRUE(region) << region.error().message();
    EXPECT_TRUE(writable_and_zero_before(region->bytes()));
  }
  EXPECT_EQ(kernel_limit(), before);
  ASSERT_TRUE(write_number(limit, before + 8));
  *beyond = LandingRegion();
  EXPECT_EQ(kernel_limit(), before);
}

/// They are counted, and taken before they are mapped.
TEST_F(LandingTest, PagesTakenByOthersAreAllocatedAgain) {
  const std::string pool = std::string(kHugepageDirectory) + "/nr_hugepages";
  const std::uint64_t before = kernel_limit();
  const std::uint64_t pages = read_number(pool).value();
  constexpr std::uint64_t kTaken = 8;
  ASSERT_TRUE(write_number(pool, pages + kTaken));
  {
    const std::jthread taker([](const std::stop_token& end) {
      while (!end.stop_requested()) {
        const UniqueMapping taken(
            ::mmap(nullptr, kTaken * kChunkBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 21 << MAP_HUGE_SHIFT, -1, 0),
            kTaken * kChunkBytes);
      }
    });
    for (int i = 0; i < 300; ++i) {
      auto region = LandingRegion::create(kTaken * kChunkBytes, HugepagePolicy::kRequire, limits_);
      ASSERT_TRUE(region) << region.error().message();
    }
  }
  EXPECT_EQ(kernel_limit(), before);
  EXPECT_TRUE(write_number(pool, pages));
}

TEST_F(LandingTest, FixedLimitMeansOrdinaryPagesAndANote) {
  pretend(1, 0, 0, 1);
  limits_.may_raise = false;
  auto region = LandingRegion::create(4 * kChunkBytes, HugepagePolicy::kAuto, limits_);
  ASSERT_TRUE(region) << region.error().message();
  EXPECT_FALSE(region->huge());
  EXPECT_NE(region->note().find("4 hugepages of 2 MiB are needed, 2 are free"), std::string::npos)
      << region->note();
  EXPECT_TRUE(writable_and_zero_before(region->bytes()));
  EXPECT_EQ(pretended_limit(), 1U);
}

TEST_F(LandingTest, MissingRequiredHugepagesAreAnErrorWithSizes) {
  pretend(1, 0, 0, 0);
  limits_.may_raise = false;
  auto region = LandingRegion::create(3 * kChunkBytes, HugepagePolicy::kRequire, limits_);
  ASSERT_FALSE(region);
  EXPECT_EQ(region.error().code(), Code::kResourceExhausted);
  EXPECT_NE(region.error().message().find("6 MiB"), std::string::npos) << region.error().message();
}

TEST_F(LandingTest, LimitIsRestoredIfTheKernelHasNoPages) {
  // The fake pool claims free pages; the kernel's own pool has far fewer.
  const std::uint64_t pages = free_hugepage_bytes().value() / kChunkBytes + 64;
  pretend(pages - 2, 0, 0, 5);
  auto region = LandingRegion::create((pages + 5) * kChunkBytes, HugepagePolicy::kAuto, limits_);
  ASSERT_TRUE(region) << region.error().message();
  EXPECT_FALSE(region->huge());
  EXPECT_NE(region->note().find("reserving"), std::string::npos) << region->note();
  EXPECT_EQ(pretended_limit(), 5U);
  EXPECT_EQ(std::distance(fs::directory_iterator(limits_.state_directory), {}), 1);  // the lock
}

TEST_F(LandingTest, MoreThanAllMemoryIsRefusedWithSizes) {
  const std::uint64_t too_much = available_memory_bytes().value() + 64 * kGiB;
  for (const auto policy :
       {HugepagePolicy::kAuto, HugepagePolicy::kRequire, HugepagePolicy::kNever}) {
    auto region = LandingRegion::create(too_much, policy, limits_);
    ASSERT_FALSE(region);
    EXPECT_EQ(region.error().code(), Code::kResourceExhausted);
    EXPECT_NE(region.error().message().find("GiB"), std::string::npos);
  }
  auto absurd = LandingRegion::create(~std::uint64_t{0}, HugepagePolicy::kAuto, limits_);
  ASSERT_FALSE(absurd);
  EXPECT_EQ(absurd.error().code(), Code::kInvalidArgument);
}

TEST_F(LandingTest, NoBytesMakeAnEmptyRegion) {
  auto region = LandingRegion::create(0, HugepagePolicy::kRequire, limits_);
  ASSERT_TRUE(region);
  EXPECT_TRUE(region->bytes().empty());
}

TEST_F(LandingTest, NextLockReleasesClaimsOfDeadOwners) {
  pretend(0, 0, 0, 10);
  const pid_t child = ::fork();
  if (child == 0) {
    auto lock = HugepageLock::take(limits_);
    auto claim = HugepageClaim::add(limits_, 7, *lock);
    ::_exit(claim ? 0 : 1);  // like a crash: no destructor runs
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(pretended_limit(), 17U);
  ASSERT_TRUE(HugepageLock::take(limits_));
  EXPECT_EQ(pretended_limit(), 10U);
}

TEST_F(LandingTest, NextLockKeepsClaimsOfLiveOwners) {
  pretend(0, 0, 0, 10);
  auto lock = HugepageLock::take(limits_);
  ASSERT_TRUE(lock) << lock.error().message();
  auto claim = HugepageClaim::add(limits_, 7, *lock);
  ASSERT_TRUE(claim) << claim.error().message();
  { const HugepageLock released = std::move(*lock); }
  ASSERT_TRUE(HugepageLock::take(limits_));
  EXPECT_EQ(pretended_limit(), 17U);
  *claim = HugepageClaim();
  EXPECT_EQ(pretended_limit(), 10U);
}

TEST_F(LandingTest, CountersWithoutHugepagesInTheKernelAreUnsupported) {
  auto counters = hugepage_counters(directory_ / "nothing");
  ASSERT_FALSE(counters);
  EXPECT_EQ(counters.error().code(), Code::kUnsupported);
}

TEST_F(LandingTest, AvailablePagesAreThePoolPlusAllowedSurplus) {
  EXPECT_EQ(
      (HugepageCounters{.free = 5, .reserved = 2, .surplus = 3, .overcommit = 10}.available()),
      10U);
  EXPECT_EQ((HugepageCounters{.free = 1, .reserved = 2, .surplus = 4, .overcommit = 3}.available()),
            0U);
}

TEST_F(LandingTest, MissingPagesIncludeThoseBeyondTheLimit) {
  const auto missing = [](HugepageCounters counters) { return counters.missing(6); };
  EXPECT_EQ(missing({.free = 8, .reserved = 2, .surplus = 9, .overcommit = 0}), 0U);
  EXPECT_EQ(missing({.free = 5, .reserved = 2, .surplus = 3, .overcommit = 10}), 0U);
  EXPECT_EQ(missing({.free = 5, .reserved = 2, .surplus = 3, .overcommit = 4}), 2U);
  EXPECT_EQ(missing({.free = 0, .reserved = 0, .surplus = 32, .overcommit = 0}), 38U);
}

}  // namespace
}  // namespace gcr::hostmem
