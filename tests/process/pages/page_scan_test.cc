// The two ways in which the kernel tells which pages a process has.
#include "migrate-agent/process/pages/page_scan.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace gcr::process::test {
namespace {

constexpr std::uint64_t kScanned = 200'000;  ///< more than one read of entries has

TEST(PageScan, EntriesOfThePageMapTellOfTheSamePagesAsPresentPages) {
  void* const mapped = ::mmap(nullptr, kScanned * kPageBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  ::madvise(mapped, kScanned * kPageBytes, MADV_NOHUGEPAGE);
  const auto start = reinterpret_cast<std::uint64_t>(mapped);
  const auto range = [&](std::uint64_t first, std::uint64_t count) {
    return AddressRange{start + first * kPageBytes, start + (first + count) * kPageBytes};
  };
  const AddressRanges written = {range(0, 1), range(7, 3), range(65'535, 2),
                                 range(kScanned - 1, 1)};
  for (const AddressRange& one : written) {
    for (std::uint64_t at = one.start; at < one.end; at += kPageBytes) {
      *reinterpret_cast<volatile char*>(at) = 1;
    }
  }
  const auto scan = PageScan::open(::getpid());
  ASSERT_TRUE(scan);
  AddressRanges found;
  EXPECT_TRUE(scan->find_present(range(0, kScanned), found));
  EXPECT_EQ(found, written);
  EXPECT_EQ(present_pages(::getpid(), {range(0, kScanned)}).value(), written);
  ::munmap(mapped, kScanned * kPageBytes);
}

TEST(PageScan, AProcessThatIsGoneIsNotFound) {
  const auto scan = PageScan::open(0x3fffffff);
  ASSERT_FALSE(scan);
  EXPECT_EQ(scan.error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace gcr::process::test
