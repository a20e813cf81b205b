// Which memory without a name is sent without CRIU, and what is read of it.
#include "migrate-agent/process/pages/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "src/base/units.h"
#include "tests/support/ready_child.h"

namespace gcr::process::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::uint64_t kPageOfShared = 4096;
constexpr std::uint64_t kSharedBytes = 4 * kMiB;

std::span<char> mapped(int flags, int fd = -1) {
  void* const at = ::mmap(nullptr, kSharedBytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  EXPECT_NE(at, MAP_FAILED);
  return {static_cast<char*>(at), kSharedBytes};
}

std::span<char> filled(int flags = MAP_SHARED | MAP_ANONYMOUS, int fd = -1) {
  const std::span<char> memory = mapped(flags, fd);
  std::ranges::fill(memory, 'x');
  return memory;
}

UniqueFd file_of(std::span<char> memory) {
  const auto start = reinterpret_cast<std::uintptr_t>(memory.data());
  const auto path = fmt::format("/proc/self/map_files/{:x}-{:x}", start, start + memory.size());
  return UniqueFd(::open(path.c_str(), O_RDWR));
}

/// A child that runs `work`, and is stopped. It inherits the mappings of this process.
class Child {
 public:
  explicit Child(const std::function<void()>& work)
      : pid_(gcr::test::fork_ready([&] {
          work();
          return true;
        })) {}
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid() const { return pid_; }

 private:
  const pid_t pid_;
};

std::vector<SharedMemory> found(const std::vector<pid_t>& pids) {
  auto memories = shared_memories(pids, {});
  EXPECT_TRUE(memories) << memories.error().message();
  return memories ? *std::move(memories) : std::vector<SharedMemory>();
}

std::vector<SharedMemory> found_after(const std::function<void()>& work) {
  const Child child(work);
  return found({child.pid()});
}

std::string read_of(const SharedMemory& memory, std::uint64_t offset, std::size_t bytes) {
  std::string content(bytes, '?');
  EXPECT_TRUE(reader_of(memory)(offset, std::as_writable_bytes(std::span(content))));
  return content;
}

TEST(SharedMemoryTest, MemoryOfOneProcessIsFound) {
  const auto memories = found_after([] { filled(); });
  ASSERT_EQ(memories.size(), 1u);
  EXPECT_EQ(memories[0].size_bytes, kSharedBytes);
  EXPECT_THAT(pages_of(memories[0]).value(), ElementsAre(AddressRange{0, kSharedBytes}));
  EXPECT_EQ(read_of(memories[0], kSharedBytes - 2, 2), "xx");
}

TEST(SharedMemoryTest, MemoryOfSeveralProcessesIsFoundOnce) {
  const std::span<char> memory = filled();
  const Child one([] {});
  const Child other([&] { ::munmap(memory.data(), kSharedBytes / 2); });
  EXPECT_EQ(found({one.pid(), other.pid()}).size(), 1u);
  ::munmap(memory.data(), memory.size());
}

/// Parts that are unmapped, inaccessible, locked, or mapped twice.
TEST(SharedMemoryTest, AllOfItIsReadInEveryMappingLayout) {
  const std::vector<std::function<void(std::span<char>)>> ways{
      [](auto memory) { ::munmap(memory.data() + kPageOfShared, kMiB); },
      [](auto memory) { ::munmap(memory.data(), kMiB); },
      [](auto memory) { ::mprotect(memory.data(), kMiB, PROT_NONE); },
      [](auto memory) { ::mlock(memory.data(), kMiB); },
      [](auto memory) { ::mremap(memory.data(), 0, kSharedBytes, MREMAP_MAYMOVE); }};
  for (const auto& way : ways) {
    const auto memories = found_after([&] { way(filled()); });
    ASSERT_EQ(memories.size(), 1u);
    EXPECT_THAT(pages_of(memories[0]).value(), ElementsAre(AddressRange{0, kSharedBytes}));
    EXPECT_EQ(read_of(memories[0], kPageOfShared, kPageOfShared), std::string(kPageOfShared, 'x'));
  }
}

TEST(SharedMemoryTest, MemoryWithADescriptorIsLeftToCriu) {
  EXPECT_THAT(found_after([] { (void)file_of(filled()).release(); }), IsEmpty());
  // In each process of the job.
  const std::span<char> memory = filled();
  const Child one([] {});
  const Child other([&] { (void)file_of(memory).release(); });
  EXPECT_THAT(found({one.pid(), other.pid()}), IsEmpty());
  EXPECT_THAT(found({other.pid(), one.pid()}), IsEmpty());
  ::munmap(memory.data(), memory.size());
}

TEST(SharedMemoryTest, OtherKindsOfMemoryAreLeftToCriu) {
  EXPECT_THAT(found_after([] { filled(MAP_PRIVATE | MAP_ANONYMOUS); }), IsEmpty());
  EXPECT_THAT(found_after([] { mapped(MAP_SHARED | MAP_ANONYMOUS)[0] = 1; }), IsEmpty());  // few
  for (const char* const name : {"mine", "/dev/zero"}) {
    for (const unsigned flags : {0u, static_cast<unsigned>(MFD_ALLOW_SEALING)}) {
      const bool is_as_criu_makes_it = std::strcmp(name, "/dev/zero") == 0 && flags == 0;
      const auto memories = found_after([&] {
        const UniqueFd file(::memfd_create(name, flags));
        EXPECT_EQ(::ftruncate(file.get(), kSharedBytes), 0);
        filled(MAP_SHARED, file.get());
      });
      EXPECT_EQ(memories.size(), is_as_criu_makes_it ? 1u : 0u) << name << flags;
    }
  }
}

TEST(SharedMemoryTest, HolesAreNeitherReadNorAllocated) {
  const auto memories = found_after([] {
    const std::span<char> memory = filled();
    ::madvise(memory.data() + kPageOfShared, kMiB, MADV_REMOVE);
  });
  ASSERT_EQ(memories.size(), 1u);
  const AddressRanges pages{{0, kPageOfShared}, {kPageOfShared + kMiB, kSharedBytes}};
  EXPECT_EQ(pages_of(memories[0]).value(), pages);
  EXPECT_EQ(read_of(memories[0], kPageOfShared, kMiB), std::string(kMiB, '\0'));
  EXPECT_EQ(pages_of(memories[0]).value(), pages);
}

TEST(SharedMemoryTest, LargeMemoryIsScannedInParts) {
  constexpr std::uint64_t kLarge = kGiB;
  // The second begins within a quarter, and extends over a whole one into the next.
  const AddressRanges pages{{0, kMiB}, {kLarge / 2 - kMiB, 3 * kLarge / 4 + kMiB}};
  const auto memories = found_after([&] {
    void* const at = ::mmap(nullptr, kLarge, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (const AddressRange& range : pages) {
      std::memset(static_cast<char*>(at) + range.start, 1, range.bytes());
    }
  });
  ASSERT_EQ(memories.size(), 1u);
  EXPECT_EQ(pages_of(memories[0]).value(), pages);
}

TEST(SharedMemoryTest, MemoryWithoutHolesIsOneRange) {
  const auto memories = found_after([] { filled(); });
  ASSERT_EQ(memories.size(), 1u);
  EXPECT_EQ(pages_of(memories[0]).value(), (AddressRanges{{0, kSharedBytes}}));
}

TEST(SharedMemoryTest, PermissionIsCheckedAfterOpeningTheMemory) {
  const Child child([] { filled(); });
  const auto refused = shared_memories({child.pid()}, [&](pid_t pid) -> Status {
    EXPECT_EQ(pid, child.pid());
    return Error(Code::kPermissionDenied, "no");
  });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kPermissionDenied);
}

}  // namespace
}  // namespace gcr::process::test
