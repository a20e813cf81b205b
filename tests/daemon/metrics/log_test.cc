// The format of log lines: plain, under systemd's journal, and with a migration's id.
#include "src/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "src/base/unique_fd.h"

namespace gcr {
namespace {

using testing::MatchesRegex;

constexpr const char* kId = "6f1c2d3e-0000-4000-8000-000000000001";

/// The log of `body`, which runs in a child process.
std::string logged(bool to_journal, const std::function<void()>& body) {
  int fds[2];
  EXPECT_EQ(::pipe(fds), 0);
  const UniqueFd read_end(fds[0]);
  UniqueFd write_end(fds[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(write_end.get(), STDERR_FILENO);
    struct stat info {};
    ::fstat(STDERR_FILENO, &info);
    const auto inode = info.st_ino + (to_journal ? 0 : 1);
    ::setenv("JOURNAL_STREAM", (std::to_string(info.st_dev) + ":" + std::to_string(inode)).c_str(),
             1);
    init_logging("program", "debug");
    body();
    ::_exit(0);
  }
  write_end.reset();
  std::string text;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(read_end.get(), buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  ::waitpid(child, nullptr, 0);
  return text;
}

TEST(Log, LinesHaveTimeLevelAndProcess) {
  EXPECT_THAT(logged(false, [] { spdlog::warn("careful"); }),
              MatchesRegex("[0-9]+-[0-9]+-[0-9]+T[0-9:.]+ warning program\\[[0-9]+\\] careful\n"));
}

TEST(Log, UnderTheJournalLinesHaveAPriorityAndNoTime) {
  const std::string text = logged(true, [] {
    spdlog::debug("one");
    spdlog::info("two");
    spdlog::warn("three");
    spdlog::error("four");
    spdlog::critical("five");
  });
  EXPECT_EQ(text, "<7>one\n<6>two\n<4>three\n<3>four\n<2>five\n");
}

TEST(Log, LinesOfAMigrationCarryItsId) {
  const auto body = [] {
    spdlog::info("before");
    log_migration(*Uuid::parse(kId));
    spdlog::info("after");
    spdlog::error("later {}", "%v");
  };
  EXPECT_EQ(logged(true, body), std::string("<6>before\n<6>migration=") + kId +
                                    " after\n<3>migration=" + kId + " later %v\n");
  EXPECT_THAT(logged(false, body),
              testing::HasSubstr(std::string("] migration=") + kId + " after\n"));
}

}  // namespace
}  // namespace gcr
