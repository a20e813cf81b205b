// Pages of zeros dropped from memory that real processes share.
#include "migrate-agent/process/pages/shared_zeros.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "src/base/unique_fd.h"
#include "src/base/units.h"
#include "tests/support/ready_child.h"

namespace gcr::test {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBytes = 4 * kMiB;

/// Every fourth page has a byte that is not zero; all are present.
void write_pages(std::span<char> bytes) {
  std::ranges::fill(bytes, 0);
  for (std::size_t at = kPage - 1; at < bytes.size(); at += 4 * kPage) bytes[at] = 1;
}

bool reads_as_written(std::span<const char> bytes) {
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    if (bytes[at] != (at % (4 * kPage) == kPage - 1 ? 1 : 0)) return false;
  }
  return true;
}

/// Shared memory of a file, or anonymous.
std::span<char> map(int fd) {
  const int flags = MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0);
  void* const at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  EXPECT_NE(at, MAP_FAILED);
  return {static_cast<char*>(at), kBytes};
}

UniqueFd file_of(std::span<char> memory) {
  const auto start = reinterpret_cast<std::uintptr_t>(memory.data());
  const auto path = fmt::format("/proc/self/map_files/{:x}-{:x}", start, start + memory.size());
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(file) << path;
  return file;
}

std::uint64_t bytes_in_memory(const UniqueFd& file) {
  struct stat status {};
  EXPECT_EQ(::fstat(file.get(), &status), 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

/// A stopped process that has inherited the mappings of this one.
class Stopped {
 public:
  Stopped() : pid_(fork_ready([] { return true; })) {
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  ~Stopped() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  const pid_t pid_;
};

class SharedZerosTest : public testing::Test {
 protected:
  ~SharedZerosTest() override {
    for (const auto bytes : mapped_) ::munmap(bytes.data(), bytes.size());
  }
  std::span<char> shared(int fd) {
    mapped_.push_back(map(fd));
    write_pages(mapped_.back());
    return mapped_.back();
  }

 private:
  std::vector<std::span<char>> mapped_;
};

TEST_F(SharedZerosTest, ZerosAreReleasedAndAllReadsTheSame) {
  const auto memory = shared(-1);
  const UniqueFd file = file_of(memory);
  ASSERT_EQ(bytes_in_memory(file), kBytes);
  const Stopped one, other;
  EXPECT_EQ(process::drop_shared_zeros({one.pid(), other.pid()}), kBytes / 4 * 3);
  EXPECT_EQ(bytes_in_memory(file), kBytes / 4);
  EXPECT_TRUE(reads_as_written(memory));
  // Dropped pages exist again for all processes once they are written.
  memory[0] = 7;
  char byte = 0;
  EXPECT_EQ(::pread(file.get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 7);
}

TEST_F(SharedZerosTest, LockedMemoryIsTreatedTheSame) {
  const auto locked = shared(-1);
  ASSERT_EQ(::mlock(locked.data(), locked.size()), 0);
  const Stopped one;
  EXPECT_EQ(process::drop_shared_zeros({one.pid()}), kBytes / 4 * 3);
  EXPECT_EQ(bytes_in_memory(file_of(locked)), kBytes / 4);
  EXPECT_TRUE(reads_as_written(locked));
}

TEST_F(SharedZerosTest, NamedFilesMemfdsAndSmallOnesAreLeftAlone) {
  char name[] = "/dev/shm/gcr-shared-zeros-XXXXXX";
  const UniqueFd named(::mkostemp(name, O_CLOEXEC));
  ASSERT_EQ(::ftruncate(named.get(), kBytes), 0);
  shared(named.get());
  ::unlink(name);
  const UniqueFd memfd(::memfd_create("/dev/zero", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memfd.get(), kBytes), 0);
  shared(memfd.get());
  const auto small = map(-1);
  std::memset(small.data(), 0, kBytes / 8);
  const Stopped one;
  EXPECT_EQ(process::drop_shared_zeros({one.pid()}), 0u);
  EXPECT_EQ(bytes_in_memory(named), kBytes);
  EXPECT_EQ(bytes_in_memory(memfd), kBytes);
  EXPECT_EQ(bytes_in_memory(file_of(small)), kBytes / 8);
  ::munmap(small.data(), small.size());
}

TEST_F(SharedZerosTest, EndedProcessHasNone) {
  pid_t gone = 0;
  {
    const Stopped one;
    gone = one.pid();
  }
  EXPECT_EQ(process::drop_shared_zeros({gone}), 0u);
}

}  // namespace
}  // namespace gcr::test
