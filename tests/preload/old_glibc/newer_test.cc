// The functions that the library brings because glibc 2.28 lacks them (preload/glibc/newer.cc).
// They are linked into this program, so its calls reach them instead of the C library's, as do
// those of its unwinder.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "src/base/unique_fd.h"

// NOLINTBEGIN(bugprone-reserved-identifier): glibc's names
extern "C" {
long __isoc23_strtol(const char* text, char** end, int base) noexcept;
unsigned long __isoc23_strtoul(const char* text, char** end, int base) noexcept;
}
// NOLINTEND(bugprone-reserved-identifier)

namespace gcr::preload {
namespace {

namespace fs = std::filesystem;

UniqueFd open_folder(const fs::path& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

/// Names in a folder by getdents64, read in pieces of a few entries.
std::set<std::string> names_in(const fs::path& path) {
  const UniqueFd folder = open_folder(path);
  alignas(dirent64) std::array<char, 128> entries;
  std::set<std::string> names;
  while (true) {
    const ssize_t got = ::getdents64(folder.get(), entries.data(), entries.size());
    EXPECT_GE(got, 0);
    if (got <= 0) return names;
    for (ssize_t at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const dirent64*>(entries.data() + at);
      names.insert(entry->d_name);
      at += entry->d_reclen;
    }
  }
}

TEST(NewerGlibc, GettidNamesTheCallingThread) {
  EXPECT_EQ(::gettid(), ::getpid());
  std::thread([] {
    EXPECT_EQ(fs::read_symlink("/proc/thread-self").filename(), std::to_string(::gettid()));
  }).join();
}

TEST(NewerGlibc, Getdents64ListsAFolder) {
  std::set<std::string> expected = {".", ".."};
  for (const auto& entry : fs::directory_iterator("/usr")) {
    expected.insert(entry.path().filename());
  }
  EXPECT_EQ(names_in("/usr"), expected);
  char none;
  EXPECT_EQ(::getdents64(-1, &none, sizeof(none)), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST(NewerGlibc, FstatTellsWhatStatTells) {
  struct stat ours;
  struct stat by_name;
  ASSERT_EQ(::fstat(open_folder("/usr").get(), &ours), 0);
  ASSERT_EQ(::stat("/usr", &by_name), 0);
  EXPECT_EQ(ours.st_dev, by_name.st_dev);
  EXPECT_EQ(ours.st_ino, by_name.st_ino);
  EXPECT_EQ(ours.st_mode, by_name.st_mode);
  EXPECT_EQ(ours.st_ctim.tv_nsec, by_name.st_ctim.tv_nsec);
  EXPECT_EQ(::fstat(-1, &ours), -1);
  EXPECT_EQ(errno, EBADF);
}

int g_before = 0;
int g_in_parent = 0;
int g_in_child = 0;

TEST(NewerGlibc, HandlersRunAtAFork) {
  ASSERT_EQ(::pthread_atfork([] { ++g_before; }, [] { ++g_in_parent; }, [] { ++g_in_child; }), 0);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(g_before == 1 && g_in_parent == 0 && g_in_child == 1 ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(g_before, 1);
  EXPECT_EQ(g_in_parent, 1);
  EXPECT_EQ(g_in_child, 0);
}

TEST(NewerGlibc, NumbersAreRead) {
  char* end = nullptr;
  EXPECT_EQ(__isoc23_strtol("-12x", &end, 10), -12);
  EXPECT_STREQ(end, "x");
  EXPECT_EQ(__isoc23_strtoul("0xffffffffffffffff", &end, 0), ~0ul);
  EXPECT_STREQ(end, "");
}

#ifdef DLFO_STRUCT_HAS_EH_DBASE
using FindObject = int (*)(void*, dl_find_object*) noexcept;

TEST(NewerGlibc, ObjectsAreThoseThatGlibcFinds) {
  const auto theirs = reinterpret_cast<FindObject>(::dlsym(RTLD_NEXT, "_dl_find_object"));
  ASSERT_NE(theirs, nullptr);
  void* const here = reinterpret_cast<void*>(&names_in);
  for (void* address : {here, ::dlsym(RTLD_DEFAULT, "memcpy"), ::dlsym(RTLD_DEFAULT, "environ")}) {
    dl_find_object expected;
    dl_find_object found;
    ASSERT_EQ(theirs(address, &expected), 0);
    ASSERT_EQ(::_dl_find_object(address, &found), 0);
    EXPECT_EQ(found.dlfo_eh_frame, expected.dlfo_eh_frame);
    EXPECT_LE(found.dlfo_map_start, address);
    EXPECT_GT(found.dlfo_map_end, address);
  }
  dl_find_object found;
  EXPECT_EQ(::_dl_find_object(&found, &found), -1) << "the stack is in no object";
}
#endif

[[gnu::noinline]] void throw_through(int frames) {
  if (frames == 0) throw std::runtime_error("thrown");
  throw_through(frames - 1);
  asm volatile("");  // so that it is no loop
}

TEST(NewerGlibc, ExceptionsAreCaught) {
  EXPECT_THROW(throw_through(10), std::runtime_error);
  std::thread([] { EXPECT_THROW(throw_through(10), std::runtime_error); }).join();
}

}  // namespace
}  // namespace gcr::preload
