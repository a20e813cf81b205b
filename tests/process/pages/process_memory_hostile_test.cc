// A process that executes another program, perhaps a privileged one, after its permission was
// checked.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "migrate-agent/process/pages/mappings.h"
#include "migrate-agent/process/pages/process_memory.h"
#include "src/base/unique_fd.h"

namespace gcr::process::test {
namespace {

/// A child that executes another program on command.
class Changing {
 public:
  enum class From { kItsOwn, kVfork };

  explicit Changing(From from = From::kItsOwn) {
    std::array<int, 2> told{};
    std::array<int, 2> executed{};  // closes with the execve
    if (::pipe(told.data()) != 0 || ::pipe2(executed.data(), O_CLOEXEC) != 0) ::abort();
    parent_ = ::fork();
    if (parent_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(told[1]);
      ::close(executed[0]);
      if (from == From::kVfork) {
        // NOLINTNEXTLINE(clang-analyzer-security.insecureAPI.vfork): what is tested
        const pid_t child = ::vfork();
        if (child != 0) wait_for(child);
      }
      const pid_t self = ::getpid();  // NOLINT(clang-analyzer-unix.Vfork): the parent only waits
      char byte = 0;
      if (::write(executed[1], &self, sizeof self) == sizeof self &&
          ::read(told[0], &byte, 1) == 1) {
        ::execlp("sleep", "sleep", "1000", nullptr);
      }
      ::_exit(1);
    }
    ::close(told[0]);
    ::close(executed[1]);
    tell_.reset(told[1]);
    executed_.reset(executed[0]);
    EXPECT_EQ(::read(executed_.get(), &pid_, sizeof pid_), static_cast<ssize_t>(sizeof pid_));
  }
  ~Changing() {
    ::kill(pid_, SIGKILL);
    ::kill(parent_, SIGKILL);
    ::waitpid(parent_, nullptr, 0);
  }
  Changing(const Changing&) = delete;
  Changing& operator=(const Changing&) = delete;

  pid_t pid() const { return pid_; }

  void execute() const {
    char byte = 0;
    ASSERT_EQ(::write(tell_.get(), &byte, 1), 1);
    ASSERT_EQ(::read(executed_.get(), &byte, 1), 0);
  }

 private:
  [[noreturn]] static void wait_for(pid_t child) {
    ::waitpid(child, nullptr, 0);
    ::_exit(0);
  }

  pid_t parent_ = -1;
  pid_t pid_ = -1;
  UniqueFd tell_;
  UniqueFd executed_;
};

/// How many pages at the addresses of the process's mappings can be read.
std::size_t readable(pid_t pid, const ReadMemory& read) {
  std::size_t pages = 0;
  for (const MemoryMapping& mapping : read_mappings(pid).value()) {
    std::array<std::byte, 4096> page;
    pages += read(mapping.range.start, page) ? 1 : 0;
  }
  return pages;
}

TEST(HostileMemory, MemoryOfTheAllowedProgramIsRead) {
  const Changing process;
  const auto read = open_memory(process.pid());
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_GT(readable(process.pid(), *read), 0U);
}

TEST(HostileMemory, MemoryAfterALaterExecveIsNotRead) {
  const Changing process;
  const auto read = open_memory(process.pid());
  ASSERT_TRUE(read) << read.error().message();
  process.execute();
  EXPECT_EQ(readable(process.pid(), *read), 0U);
  EXPECT_GT(readable(process.pid(), open_memory(process.pid()).value()), 0U);
}

TEST(HostileMemory, MemoryAfterAConcurrentExecveIsNotRead) {
  const Changing process;
  const auto read = open_memory(process.pid(), [&process](pid_t) {
    process.execute();
    return Status();
  });
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(readable(process.pid(), *read), 0U);
}

TEST(HostileMemory, MemoryOfAnUnmovableProcessIsNotRead) {
  const Changing process;
  const auto read = open_memory(process.pid(), [](pid_t) -> Status {
    return Error(Code::kPermissionDenied, "it belongs to another user");
  });
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), Code::kPermissionDenied);
}

/// Its parent's memory stays alive after its execve.
TEST(HostileMemory, ParentsMemoryIsNotReadThroughItsVforkChild) {
  const Changing process(Changing::From::kVfork);
  const auto read = open_memory(process.pid());
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace gcr::process::test
