// The files that release_files finds: exactly those with the prefix, for lines of any length.
#include "preload/inherited.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace gcr::preload {
namespace {

constexpr std::size_t kPage = 4096;

class InheritedTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = "/dev/shm/gcr-inherited-" + std::to_string(::getpid());
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override {
    for (void* page : pages_) ::munmap(page, kPage);
    for (const int file : files_) ::close(file);
    std::filesystem::remove_all(folder_);
  }

  std::string prefix() const { return folder_ + "/device"; }

  /// Creates a file at `path`, opens and maps it; returns the descriptor.
  int hold(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT_EQ(::ftruncate(file, kPage), 0) << path;
    map(file);
    files_.push_back(file);
    return file;
  }
  void* map(int file) {
    void* page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    EXPECT_NE(page, MAP_FAILED);
    pages_.push_back(page);
    return page;
  }
  /// A file below so many folders that its path has about `length` characters, created step by
  /// step.
  int hold_deep(std::size_t length) {
    const std::string step(200, 'd');
    int at = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (std::size_t done = folder_.size(); done < length; done += step.size() + 1) {
      EXPECT_EQ(::mkdirat(at, step.c_str(), 0700), 0);
      const int below = ::openat(at, step.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      ::close(at);
      at = below;
    }
    const int file = ::openat(at, "device", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ::close(at);
    EXPECT_EQ(::ftruncate(file, kPage), 0);
    map(file);
    files_.push_back(file);
    return file;
  }

  std::string folder_;
  std::vector<void*> pages_;
  std::vector<int> files_;
};

/// Lines of the process's own maps that contain `text`.
std::size_t mappings_with(const std::string& text) {
  std::ifstream maps("/proc/self/maps");
  std::size_t found = 0;
  for (std::string line; std::getline(maps, line);) found += line.find(text) != line.npos;
  return found;
}

bool is_open(int file) { return ::fcntl(file, F_GETFD) >= 0; }

TEST_F(InheritedTest, OnlyDescriptorsWithThePrefixAreClosed) {
  const int first = hold(prefix());
  const int second = hold(prefix() + "-of another kind");
  const int shorter = hold(folder_ + "/devic");
  std::filesystem::create_directory(folder_ + "/other");
  const int below = hold(folder_ + "/other " + "device");
  release_files(prefix());
  EXPECT_EQ(mappings_with(prefix()), 0u);
  EXPECT_FALSE(is_open(first));
  EXPECT_FALSE(is_open(second));
  EXPECT_EQ(mappings_with(folder_), 2u);
  EXPECT_TRUE(is_open(shorter));
  EXPECT_TRUE(is_open(below));
}

TEST_F(InheritedTest, HundredsAreClosedAtOnce) {
  const int file = hold(prefix());
  for (int i = 0; i < 700; ++i) {
    map(file);
    map(files_.front());
    files_.push_back(::fcntl(file, F_DUPFD_CLOEXEC, 0));
    hold(folder_ + "/kept" + std::to_string(i % 3));
  }
  release_files(prefix());
  EXPECT_EQ(mappings_with(prefix()), 0u);
  for (const int held : files_) {
    char path[256] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(held);
    if (::readlink(link.c_str(), path, sizeof(path) - 1) < 0) continue;
    EXPECT_TRUE(std::string(path).starts_with(folder_ + "/kept")) << path;
  }
  EXPECT_EQ(mappings_with(folder_ + "/kept"), 700u);
}

TEST_F(InheritedTest, LongLinesAreSkipped) {
  for (const std::size_t length : {200, 500, 3900, 4200, 9000}) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    const int before = hold(prefix());
    const int deep = hold_deep(length);
    const int after = hold(prefix());
    release_files(prefix());
    EXPECT_EQ(mappings_with(prefix()), 0u) << length;
    EXPECT_FALSE(is_open(before));
    EXPECT_FALSE(is_open(after));
    EXPECT_TRUE(is_open(deep));
  }
}

TEST_F(InheritedTest, DeletedAndOddlyNamedFilesAreFound) {
  hold(prefix() + "\nnew line");
  hold(prefix() + " deleted");
  std::filesystem::remove(prefix() + " deleted");
  errno = 4711;
  release_files(prefix());
  EXPECT_EQ(errno, 4711);
  EXPECT_EQ(mappings_with(prefix()), 0u);
  for (const int file : files_) EXPECT_FALSE(is_open(file));
}

TEST_F(InheritedTest, WithoutAFreeDescriptorItReturns) {
  const int file = hold(prefix());
  std::vector<int> taken;
  rlimit limit{}, low{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  low = {static_cast<rlim_t>(file) + 1, limit.rlim_max};
  for (int next = 0; (next = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) < file && next >= 0;) {
    taken.push_back(next);
  }
  ::setrlimit(RLIMIT_NOFILE, &low);
  release_files(prefix());
  ::setrlimit(RLIMIT_NOFILE, &limit);
  for (const int held : taken) ::close(held);
  EXPECT_TRUE(is_open(file));
}

}  // namespace
}  // namespace gcr::preload
