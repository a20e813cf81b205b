// A driver's memory and copies while its calls are redirected, and its own calls otherwise.
#include "preload/checkpoint_memory.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "src/base/units.h"
#include "tests/support/mapping_flags.h"

namespace gcr::preload {
namespace {

constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;
constexpr int kPopulated = kPrivate | MAP_POPULATE;
constexpr int kReadWrite = PROT_READ | PROT_WRITE;
constexpr std::size_t kPageBytes = 4096;
/// No whole number of huge pages.
constexpr std::size_t kBytes = 41 * kMiB + 3 * kPageBytes;

bool is_for_huge_pages(const void* address) {
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  return test::flags_at(::getpid(), number).find(" hg") != std::string::npos;
}

std::size_t resident_bytes(void* address, std::size_t bytes) {
  std::vector<unsigned char> pages((bytes + kPageBytes - 1) / kPageBytes);
  EXPECT_EQ(::mincore(address, bytes, pages.data()), 0);
  return kPageBytes * std::ranges::count_if(pages, [](unsigned char page) { return page & 1; });
}

class CheckpointMemoryTest : public testing::TestWithParam<const char*> {
 protected:
  using Map = void* (*)(std::size_t bytes, int protection, int flags);
  using Copy = void* (*)(void* to, const void* from, std::size_t bytes);

  void SetUp() override {
    driver_ = ::dlopen(GetParam(), RTLD_LAZY);
    ASSERT_NE(driver_, nullptr) << ::dlerror();
    map_ = reinterpret_cast<Map>(::dlsym(driver_, "copying_driver_map"));
    map64_ = reinterpret_cast<Map>(::dlsym(driver_, "copying_driver_map64"));
    copy_ = reinterpret_cast<Copy>(::dlsym(driver_, "copying_driver_copy"));
    const std::string path = GetParam();
    checkpoint_memory::find_calls(path.substr(path.rfind('/') + 1));
    checkpoint_memory::intercept_calls();
  }
  void TearDown() override {
    checkpoint_memory::restore_calls();
    for (const auto& [address, bytes] : mapped_) ::munmap(address, bytes);
    ::dlclose(driver_);
  }

  std::byte* map(std::size_t bytes, int protection, int flags) {
    void* const address = map_(bytes, protection, flags);
    EXPECT_NE(address, MAP_FAILED);
    mapped_.emplace_back(address, bytes);
    return static_cast<std::byte*>(address);
  }

  void* driver_ = nullptr;
  Map map_ = nullptr;
  Map map64_ = nullptr;
  Copy copy_ = nullptr;
  std::vector<std::pair<void*, std::size_t>> mapped_;
};

INSTANTIATE_TEST_SUITE_P(Bound, CheckpointMemoryTest,
                         testing::Values(GCR_COPYING_DRIVER_NOW, GCR_COPYING_DRIVER_LAZY),
                         [](const auto& info) {
                           return info.param == std::string(GCR_COPYING_DRIVER_NOW) ? "AtOnce"
                                                                                    : "Lazily";
                         });

TEST_P(CheckpointMemoryTest, PopulatedMemoryIsLeftUntouched) {
  for (Map* const function : {&map_, &map64_}) {
    errno = 4711;
    void* const memory = (*function)(kBytes, kReadWrite, kPopulated);
    EXPECT_EQ(errno, 4711);
    ASSERT_NE(memory, MAP_FAILED);
    mapped_.emplace_back(memory, kBytes);
    EXPECT_TRUE(is_for_huge_pages(memory));
    EXPECT_EQ(resident_bytes(memory, kBytes), 0u);
  }
}

TEST_P(CheckpointMemoryTest, OtherMemoryIsLeftToTheKernel) {
  EXPECT_FALSE(is_for_huge_pages(map(kMiB, kReadWrite, kPopulated)));
  EXPECT_FALSE(is_for_huge_pages(map(kBytes, PROT_READ, kPopulated)));
  EXPECT_FALSE(is_for_huge_pages(map(kBytes, kReadWrite, MAP_SHARED | MAP_ANONYMOUS)));
  EXPECT_FALSE(is_for_huge_pages(map(kBytes, kReadWrite, kPrivate)));
  errno = 0;
  EXPECT_EQ(map_(std::size_t{1} << 60, kReadWrite, kPopulated), MAP_FAILED);
  EXPECT_EQ(errno, ENOMEM);
}

TEST_P(CheckpointMemoryTest, OnlyMemoryOfTheDriverIsReplaced) {
  void* const own = ::mmap(nullptr, kBytes, kReadWrite, kPopulated, -1, 0);
  ASSERT_NE(own, MAP_FAILED);
  mapped_.emplace_back(own, kBytes);
  EXPECT_EQ(resident_bytes(own, kBytes), kBytes);
  EXPECT_FALSE(is_for_huge_pages(own));
}

TEST_P(CheckpointMemoryTest, ReplacedMemoryIsUnmapped) {
  checkpoint_memory::restore_calls();
  std::byte* const memory = map(kBytes, kReadWrite, kPopulated);
  EXPECT_EQ(resident_bytes(memory, kBytes), kBytes);
  EXPECT_FALSE(is_for_huge_pages(memory));
  checkpoint_memory::restore_calls();  // changes nothing
  checkpoint_memory::intercept_calls();
  checkpoint_memory::intercept_calls();  // the same
  EXPECT_EQ(resident_bytes(map(kBytes, kReadWrite, kPopulated), kBytes), 0u);
  checkpoint_memory::restore_calls();
  EXPECT_EQ(resident_bytes(map(kBytes, kReadWrite, kPopulated), kBytes), kBytes);
}

/// If the loader had made the driver's calls read-only, they are read-only again.
TEST_P(CheckpointMemoryTest, PagesOfTheDriverKeepTheirProtection) {
  const auto rights = [&] {
    link_map* map = nullptr;
    EXPECT_EQ(::dlinfo(driver_, RTLD_DI_LINKMAP, &map), 0);
    std::string all;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find(map->l_name) != std::string::npos) all += line + "\n";
    }
    return all;
  };
  const std::string taken_over = rights();
  EXPECT_NE(taken_over.find("copying_driver"), std::string::npos);
  checkpoint_memory::restore_calls();
  EXPECT_EQ(rights(), taken_over);
}

/// Pages of zeros and others, in runs that fit neither pieces nor pages.
std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> pattern(bytes);
  for (std::size_t at = 0; at < bytes; ++at) {
    if (at / 10'007 % 3 == 0) pattern[at] = static_cast<std::byte>(at * 31 + at / 4096);
  }
  return pattern;
}

TEST_P(CheckpointMemoryTest, CopiesAreComplete) {
  std::byte* const memory = map(kBytes, kReadWrite, kPopulated);
  for (const std::size_t bytes :
       {std::size_t{1}, 100 * kKiB, 512 * kKiB, 2 * kMiB, 2 * kMiB + 777, 23 * kMiB + 5}) {
    for (const std::size_t offset : {std::size_t{0}, std::size_t{4096}, std::size_t{100'001}}) {
      const std::vector<std::byte> from = pattern(bytes);
      errno = 4711;
      ASSERT_EQ(copy_(memory + offset, from.data(), bytes), memory + offset);
      EXPECT_EQ(errno, 4711);
      ASSERT_EQ(std::memcmp(memory + offset, from.data(), bytes), 0) << bytes << " at " << offset;
      std::vector<std::byte> back(bytes);
      copy_(back.data(), memory + offset, bytes);
      ASSERT_EQ(back, from) << bytes << " at " << offset;
    }
  }
}

TEST_P(CheckpointMemoryTest, ZerosUseNoMemoryButOverwrite) {
  std::byte* const memory = map(kBytes, kReadWrite, kPopulated);
  const std::vector<std::byte> zeros(kBytes);
  copy_(memory, zeros.data(), kBytes);
  EXPECT_EQ(resident_bytes(memory, kBytes), 0u);

  std::ranges::fill_n(memory + 5 * kMiB, 3 * kMiB, std::byte{7});
  std::vector<std::byte> from = zeros;
  from[30 * kMiB] = std::byte{1};
  copy_(memory, from.data(), kBytes);
  EXPECT_LE(resident_bytes(memory, kBytes), 8 * kMiB);
  EXPECT_EQ(std::memcmp(memory, from.data(), kBytes), 0);
}

TEST_P(CheckpointMemoryTest, ZerosAreWrittenToOtherMemory) {
  std::byte* const memory = map(kBytes, kReadWrite, kPrivate);
  const std::vector<std::byte> zeros(kBytes);
  copy_(memory, zeros.data(), kBytes);
  EXPECT_EQ(resident_bytes(memory, kBytes), kBytes);
}

}  // namespace
}  // namespace gcr::preload
