// Sizes and offsets that do not fit 32 bits, in little memory.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "src/base/unique_fd.h"
#include "tests/conformance/conformance_fixture.h"

namespace gcr::test {
namespace {

/// A long range of addresses that maps the same short memory repeatedly. Its length does not divide
/// 4 GiB: an offset truncated to 32 bits lands in the wrong place.
class Repeated {
 public:
  static constexpr std::size_t kPeriod = 12 * kMiB;

  explicit Repeated(std::size_t bytes) : bytes_(round_up(bytes, kPeriod)) {
    const UniqueFd file(::memfd_create("repeated", MFD_CLOEXEC));
    address_ =
        ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!file || ::ftruncate(file.get(), kPeriod) != 0 || address_ == MAP_FAILED) {
      throw std::runtime_error("no memory");
    }
    for (std::size_t at = 0; at < bytes_; at += kPeriod) {
      if (::mmap(static_cast<std::byte*>(address_) + at, kPeriod, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_FIXED | MAP_POPULATE, file.get(), 0) == MAP_FAILED) {
        throw std::runtime_error("no memory");
      }
    }
  }
  ~Repeated() { ::munmap(address_, bytes_); }
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;

  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(address_), bytes_}; }
  std::span<std::byte> period() const { return bytes().first(kPeriod); }

 private:
  std::size_t bytes_;
  void* address_;
};

/// The landed bytes, as a set of ranges.
class Ranges {
 public:
  void add(std::uint64_t offset, std::uint64_t length) {
    const std::lock_guard lock(mutex_);
    ranges_.emplace_back(offset, length);
  }

  /// Whether they cover [0, size) and nothing else, each byte once.
  bool tile(std::uint64_t size) {
    const std::lock_guard lock(mutex_);
    std::sort(ranges_.begin(), ranges_.end());
    std::uint64_t end = 0;
    for (const auto& [offset, length] : ranges_) {
      if (offset != end) return false;
      end += length;
    }
    return end == size;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges_;
};

using LargeTest = ConformanceTest;

TEST_P(LargeTest, WriteOfTheLargestSizeArrives) {
  const std::uint64_t size = capabilities().largest_bytes;
  const Repeated target(size);
  const Repeated source(size);
  const Bytes content = random_bytes(Repeated::kPeriod, 1);
  std::copy(content.begin(), content.end(), source.period().begin());
  Ranges landed;
  start({.lanes = 2,
         .on_landed = [&](transport::RegionId region, std::uint64_t offset,
                          std::uint64_t length) -> Status {
           if (region == kRegion + 1) landed.add(offset, length);
           return {};
         }},
        1);
  ASSERT_TRUE(ok(receiver().add_region(kRegion + 1, target.bytes().first(size))));
  ASSERT_TRUE(ok(channel().write(kRegion + 1, 0, source.bytes().first(size))));
  ASSERT_TRUE(ok(channel().flush()));
  EXPECT_TRUE(landed.tile(size));
  EXPECT_TRUE(std::ranges::equal(target.period(), content));
  EXPECT_EQ(channel().statistics().payload_bytes, size);
  EXPECT_EQ(receiver().statistics().payload_bytes, size);
  transfer_.reset();  // before its region and its source
}

TEST_P(LargeTest, OffsetsInALargeRegionAreExact) {
  constexpr std::uint64_t k4GiB = std::uint64_t{1} << 32;
  const std::uint64_t size = std::min(capabilities().largest_region_bytes, k4GiB + 2 * kMiB);
  const std::uint64_t middle = size - 2 * kMiB;
  const Bytes source = random_bytes(3 * kKiB, 2);
  const Repeated target(size);
  start({}, 1);
  ASSERT_TRUE(ok(receiver().add_region(kRegion + 1, target.bytes().first(size))));
  for (const std::uint64_t offset : {middle - 1, middle, middle + 1, size - source.size()}) {
    std::ranges::fill(target.period(), std::byte{0xee});
    ASSERT_TRUE(ok(channel().write(kRegion + 1, offset, source)));
    ASSERT_TRUE(ok(channel().flush()));
    EXPECT_TRUE(std::ranges::equal(target.bytes().subspan(offset, source.size()), source))
        << offset;
    const auto changed =
        std::ranges::count_if(target.period(), [](std::byte b) { return b != std::byte{0xee}; });
    EXPECT_LE(static_cast<std::size_t>(changed), source.size()) << offset;
  }
  Status behind = channel().write(kRegion + 1, size - source.size() + 1, source);
  if (behind) behind = channel().flush();
  EXPECT_TRUE(refused(behind, Code::kInvalidArgument, "does not fit"));
  transfer_.reset();
}

GCR_CONFORMANCE_SUITE(LargeTest);

}  // namespace
}  // namespace gcr::test
