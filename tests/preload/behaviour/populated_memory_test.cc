// mmap as the library exports it: what it makes of memory that is populated while the gate is
// closed.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "preload/gate.h"
#include "src/base/units.h"

namespace gcr::preload {
namespace {

constexpr int kPopulated = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
constexpr std::size_t kPageBytes = 4096;
/// No whole number of huge pages, and enough for several threads.
constexpr std::size_t kBytes = 41 * kMiB + 3 * kPageBytes;

/// Whether the mapping that `address` lies in is marked for huge pages.
bool is_marked(const void* address) {
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    std::uintptr_t start = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &start, &end) == 2) {
      inside = start <= number && number < end;
    } else if (inside && line.starts_with("VmFlags:")) {
      return line.find(" hg") != std::string::npos;
    }
  }
  return false;
}

std::size_t resident_bytes(void* address, std::size_t bytes) {
  std::vector<unsigned char> pages((bytes + kPageBytes - 1) / kPageBytes);
  EXPECT_EQ(::mincore(address, bytes, pages.data()), 0);
  return kPageBytes * std::ranges::count_if(pages, [](unsigned char page) { return page & 1; });
}

class PopulatedMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    gate::prepare();
    ASSERT_TRUE(gate::close(std::chrono::seconds(10)));
  }
  void TearDown() override {
    gate::open();
    for (const auto& [address, bytes] : mapped_) ::munmap(address, bytes);
  }

  std::byte* map(std::size_t bytes, int protection, int flags, auto* function) {
    void* const address = function(nullptr, bytes, protection, flags, -1, 0);
    EXPECT_NE(address, MAP_FAILED);
    mapped_.emplace_back(address, bytes);
    return static_cast<std::byte*>(address);
  }

  std::vector<std::pair<void*, std::size_t>> mapped_;
};

TEST_F(PopulatedMemoryTest, IsAllThereAndMarkedForHugePages) {
  for (auto* function : {&::mmap, &::mmap64}) {
    errno = 4711;
    std::byte* const memory = map(kBytes, PROT_READ | PROT_WRITE, kPopulated, function);
    EXPECT_EQ(errno, 4711);
    EXPECT_EQ(resident_bytes(memory, kBytes), kBytes);
    EXPECT_TRUE(is_marked(memory));
    for (std::size_t at = 0; at < kBytes; at += kPageBytes) EXPECT_EQ(memory[at], std::byte{0});
    memory[kBytes - 1] = std::byte{1};
  }
}

TEST_F(PopulatedMemoryTest, IsTheKernelsWhileTheGateIsOpen) {
  gate::open();
  std::byte* const memory = map(kBytes, PROT_READ | PROT_WRITE, kPopulated, &::mmap);
  EXPECT_EQ(resident_bytes(memory, kBytes), kBytes);
  EXPECT_FALSE(is_marked(memory));
}

TEST_F(PopulatedMemoryTest, WhatIsLittleOrOfAnotherKindIsTheKernels) {
  EXPECT_FALSE(is_marked(map(kMiB, PROT_READ | PROT_WRITE, kPopulated, &::mmap)));
  EXPECT_FALSE(is_marked(map(kBytes, PROT_READ, kPopulated, &::mmap)));
  constexpr int kShared = MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE;
  EXPECT_FALSE(is_marked(map(kBytes, PROT_READ | PROT_WRITE, kShared, &::mmap)));
  std::byte* const lazy = map(kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, &::mmap);
  EXPECT_FALSE(is_marked(lazy));
  EXPECT_EQ(resident_bytes(lazy, kBytes), 0u);
}

TEST_F(PopulatedMemoryTest, WhatCannotBeMappedIsTheKernelsError) {
  errno = 0;
  EXPECT_EQ(::mmap(nullptr, std::size_t{1} << 60, PROT_READ | PROT_WRITE, kPopulated, -1, 0),
            MAP_FAILED);
  EXPECT_EQ(errno, ENOMEM);
}

TEST_F(PopulatedMemoryTest, SeveralThreadsMayAskAtTheSameTime) {
  std::array<std::byte*, 4> memory{};
  std::vector<std::thread> threads;
  for (std::byte*& one : memory) {
    threads.emplace_back([&one] {
      one = static_cast<std::byte*>(
          ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, kPopulated, -1, 0));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::byte* const one : memory) {
    ASSERT_NE(static_cast<void*>(one), MAP_FAILED);
    EXPECT_EQ(resident_bytes(one, kBytes), kBytes);
    mapped_.emplace_back(one, kBytes);
  }
}

}  // namespace
}  // namespace gcr::preload
