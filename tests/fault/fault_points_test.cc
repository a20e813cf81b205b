// The effect of an armed fault point, which occurs once.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "migrate-agent/base/fault/fault.h"
#include "tests/fault/points.h"

namespace gcr::fault {
namespace {

namespace fs = std::filesystem;

/// A directory for the whole program: the library reads the file's name once.
const fs::path& directory() {
  static const fs::path path = [] {
    std::string pattern = "/tmp/gcr-fault-points-XXXXXX";
    const fs::path made = ::mkdtemp(pattern.data());
    ::setenv("GCR_FAULTS", (made / "faults").c_str(), 1);
    return made;
  }();
  return path;
}

std::string read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class FaultPointsTest : public testing::Test {
 protected:
  FaultPointsTest() { fs::create_directory(directory()); }
  ~FaultPointsTest() override { fs::remove_all(directory()); }

  static void arm(const std::string& text) { std::ofstream(directory() / "faults") << text; }
  static bool is_armed() { return fs::exists(directory() / "faults"); }
  static std::string hit() { return read(directory() / "faults.hit"); }

  /// The wait status of a child that runs `work` and then exits with 0.
  static pid_t child(const std::function<void()>& work) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      work();
      ::_exit(0);
    }
    return pid;
  }
};

/// A program that reads an environment variable has its name among its constants.
TEST(ShippedAgent, NeverReadsArmedPoints) {
  EXPECT_EQ(read(GCR_AGENT).find("GCR_FAULTS"), std::string::npos);
  EXPECT_NE(read(GCR_AGENT "-faults").find("GCR_FAULTS"), std::string::npos);
}

TEST_F(FaultPointsTest, UnarmedPointDoesNothing) {
  EXPECT_TRUE(point("source.gated"));
  arm("source.gated.not error\nsource.detached error\n");
  EXPECT_TRUE(point("source.gated"));
  EXPECT_FALSE(armed("source.gated"));
  EXPECT_TRUE(is_armed());
}

TEST_F(FaultPointsTest, ErrorNamesThePointAndOccursOnce) {
  arm("source.gated error the gate jams\n");
  const Status status = point("source.gated");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kInternal);
  EXPECT_EQ(status.error().message(), "fault point source.gated: the gate jams");
  EXPECT_EQ(hit(), "source.gated error the gate jams\nhit " + std::to_string(::getpid()) + "\n");
  EXPECT_TRUE(point("source.gated"));
}

TEST_F(FaultPointsTest, CorruptionOccursOnce) {
  arm("destination.vram.corrupt corrupt\n");
  EXPECT_TRUE(armed("destination.vram.corrupt"));
  EXPECT_FALSE(armed("destination.vram.corrupt"));
}

TEST_F(FaultPointsTest, KillDisarmsThePointFirst) {
  arm("source.gated kill\n");
  const pid_t pid = child([] { (void)point("source.gated"); });
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_FALSE(is_armed());
  EXPECT_EQ(hit(), "source.gated kill\nhit " + std::to_string(pid) + "\n");
}

TEST_F(FaultPointsTest, StoppedProcessRunsOnAfterSigcont) {
  arm("source.gated stop\n");
  const pid_t pid = child([] { (void)point("source.gated"); });
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, WUNTRACED), pid);
  ASSERT_TRUE(WIFSTOPPED(status));
  ::kill(pid, SIGCONT);
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
}

TEST_F(FaultPointsTest, CommandIsWaitedForAndInheritsNothing) {
  const fs::path out = directory() / "out";
  const int inherited = ::open("/dev/null", O_RDONLY);  // without O_CLOEXEC
  arm("source.gated run echo $PPID >" + out.string() + "; ls /proc/self/fd >>" + out.string());
  ASSERT_TRUE(point("source.gated"));
  ::close(inherited);
  std::istringstream lines(read(out));
  std::string parent;
  lines >> parent;
  EXPECT_EQ(parent, std::to_string(::getpid()));
  std::set<std::string> descriptors;
  for (std::string fd; lines >> fd;) descriptors.insert(fd);
  EXPECT_EQ(descriptors, (std::set<std::string>{"0", "1", "2", "3"}));  // 3: ls reads with it
}

TEST_F(FaultPointsTest, FailingCommandIsAnError) {
  arm("source.gated run false\n");
  EXPECT_FALSE(point("source.gated"));
}

TEST_F(FaultPointsTest, UnknownActionIsAnError) {
  arm("source.gated explode\n");
  const Status status = point("source.gated");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kInvalidArgument);
}

TEST_F(FaultPointsTest, OnlyOneThreadIsHit) {
  arm("source.gated error\n");
  std::atomic<int> hits = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&hits] { hits += point("source.gated") ? 0 : 1; });
    }
  }
  EXPECT_EQ(hits, 1);
}

TEST(FaultPointNames, AreUniqueAndNameTheirSide) {
  std::set<std::string_view> names;
  for (const Point& point : kPoints) {
    EXPECT_TRUE(names.insert(point.name).second) << point.name;
    EXPECT_EQ(point.name.starts_with("source."), point.side == Side::kSource) << point.name;
    EXPECT_EQ(point.name.starts_with("destination."), point.side == Side::kDestination)
        << point.name;
  }
}

}  // namespace
}  // namespace gcr::fault
