// The file system of a migration's images: of fixed size, and mounted nowhere.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "migrate-agent/transfer/images/scratch.h"
#include "src/base/units.h"

namespace gcr::images::test {
namespace {

std::string mounts() {
  std::ostringstream text;
  text << std::ifstream("/proc/self/mountinfo").rdbuf();
  return text.str();
}

/// How many bytes fit into a new file.
std::uint64_t fill(const std::filesystem::path& file) {
  const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const std::string block(64 * kKiB, 'x');
  std::uint64_t written = 0;
  for (ssize_t count = 0; (count = ::write(fd.get(), block.data(), block.size())) > 0;) {
    written += static_cast<std::uint64_t>(count);
  }
  return written;
}

TEST(ImageMemory, IsLimitedToItsSize) {
  auto memory = ImageMemory::create(kMiB);
  ASSERT_TRUE(memory) << memory.error().message();
  EXPECT_EQ(fill(memory->path() / "first"), kMiB);
  ASSERT_TRUE(memory->resize(3 * kMiB));
  EXPECT_EQ(fill(memory->path() / "second"), 2 * kMiB);
  EXPECT_FALSE(memory->resize(kMiB));
}

TEST(ImageMemory, IsAnUnmountedTmpfs) {
  const std::string before = mounts();
  const auto memory = ImageMemory::create(kMiB);
  ASSERT_TRUE(memory) << memory.error().message();
  struct statfs facts {};
  ASSERT_EQ(::statfs((memory->path() / ".").c_str(), &facts), 0);
  EXPECT_EQ(facts.f_type, TMPFS_MAGIC);
  EXPECT_EQ(mounts(), before);
}

TEST(ImageMemory, IsReachedByDescriptorAcrossNamespaces) {
  const auto memory = ImageMemory::create(kMiB);
  ASSERT_TRUE(memory) << memory.error().message();
  std::ofstream(memory->path() / "image") << "content";
  const UniqueFd directory(::open(memory->path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool alone = ::unshare(CLONE_NEWNS) == 0;
    const int file = ::openat(directory.get(), "image", O_RDONLY);
    char first = 0;
    ::_exit(alone && ::read(file, &first, 1) == 1 && first == 'c' ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace gcr::images::test
