// The sample programs on the software GPU: undisturbed, and interrupted by a checkpoint.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "src/base/unique_fd.h"
#include "src/base/units.h"
#include "tests/apps/handover.h"
#include "tests/apps/on_face.h"
#include "tests/apps/preforked.h"
#include "tests/apps/ticker.h"
#include "tests/softgpu/subjects.h"

namespace gcr::apps {
namespace {

using softgpu::test::Face;
using softgpu::test::Machine;
using softgpu::test::Process;
using softgpu::test::Subject;

std::vector<std::string> lines_of(Process& program) {
  std::vector<std::string> lines;
  for (std::string line = program.receive(); !line.empty(); line = program.receive()) {
    lines.push_back(line);
  }
  return lines;
}

class AppsTest : public softgpu::test::FaceTest {
 protected:
  /// A program on the first machine.
  struct Program : Process {
    Program(const AppsTest& test, const std::vector<std::string>& command)
        : Process(test.here_, on_face(GetParam(), command)) {}
  };
  /// Whether the program has ended; it is not reaped.
  static bool has_ended(const Process& program) {
    siginfo_t info = {};
    return ::waitid(P_PID, static_cast<id_t>(program.pid()), &info, WEXITED | WNOHANG | WNOWAIT) ==
               0 &&
           info.si_pid != 0;
  }
  /// Moves a running program's state from its GPU to that of the other machine; false if the
  /// program ended before.
  bool move_there(const Process& program) {
    Subject agent(there_, GetParam());
    const std::string pid = std::to_string(program.pid());
    const std::string locked = agent.ask("lock " + pid + " 0");
    if (locked != "0" && has_ended(program)) return false;
    EXPECT_EQ(locked, "0");
    EXPECT_EQ(agent.ask("checkpoint " + pid), "0");
    EXPECT_EQ(here_.used_bytes(0), 0);
    EXPECT_EQ(agent.ask("restore " + pid + " " + here_.uuid(0) + " " + there_.uuid(0)), "0");
    EXPECT_EQ(agent.ask("unlock " + pid), "0");
    return true;
  }
  /// The output of a run that was moved after its second line. On a busy machine a run may be over
  /// before it can be moved; then the next one counts.
  std::vector<std::string> run_and_move(const std::vector<std::string>& command) {
    for (;;) {
      Program program(*this, command);
      std::vector<std::string> lines{program.receive(), program.receive()};
      const bool moved = move_there(program);
      for (std::string& line : lines_of(program)) lines.push_back(std::move(line));
      EXPECT_EQ(program.wait(), 0);
      if (moved || HasFailure()) return lines;
    }
  }
  std::vector<std::string> run(const std::vector<std::string>& command) {
    Program program(*this, command);
    auto lines = lines_of(program);
    EXPECT_EQ(program.wait(), 0);
    return lines;
  }

  Machine here_{{{gpu_a(), "128M"}}};
  Machine there_{{{gpu_b(), "128M"}}};
};

INSTANTIATE_TEST_SUITE_P(Faces, AppsTest, softgpu::test::kBothFaces, softgpu::test::name_of_face);

TEST_P(AppsTest, StencilPrintsTheSameLinesAfterAMove) {
  const std::vector<std::string> command{APPS_STENCIL, "--mib",    "20", "--steps",
                                         "400",        "--report", "50"};
  const auto undisturbed = run(command);
  ASSERT_EQ(undisturbed.size(), 9);
  EXPECT_TRUE(undisturbed.back().starts_with("step=400 checksum="));
  EXPECT_NE(undisturbed[7].substr(9), undisturbed[8].substr(9));
  EXPECT_EQ(run_and_move(command), undisturbed);
}

TEST(AppsOnBothFaces, PrintTheSame) {
  const std::vector<std::vector<std::string>> commands{
      {APPS_STENCIL, "--mib", "20", "--steps", "100", "--report", "50"},
      {APPS_ALLOC_STYLES, "--mib", "4", "--steps", "100", "--report", "50"},
      {APPS_SCRIBBLER, "--vram", "24M", "--steps-per-second", "1000", "--steps", "10"}};
  const Machine machine{{{softgpu::test::kGpuA, "128M"}, {softgpu::test::kAmdGpuA, "128M"}}};
  for (const auto& command : commands) {
    Process on_cuda(machine, on_face(Face::kCuda, command));
    Process on_hip(machine, on_face(Face::kHip, command));
    const auto lines = lines_of(on_cuda);
    EXPECT_GE(lines.size(), 2);
    EXPECT_EQ(lines_of(on_hip), lines);
  }
}

TEST_P(AppsTest, EveryKindOfAllocationSurvivesAMove) {
  const std::vector<std::string> command{APPS_ALLOC_STYLES, "--mib", "4", "--steps", "2000",
                                         "--report",        "250"};
  const auto undisturbed = run(command);
  ASSERT_EQ(undisturbed.size(), 8);
  EXPECT_EQ(run_and_move(command), undisturbed);
}

TEST_P(AppsTest, ScribblerPrintsTheSameLinesAfterAMove) {
  const std::vector<std::vector<std::string>> ways{
      {}, {"--piece", "64K", "--zeros", "0.3"}, {"--churn", "5"}, {"--by-copy"}};
  for (const auto& way : ways) {
    std::vector<std::string> command{
        APPS_SCRIBBLER, "--vram",  "24M", "--steps-per-second", "1000", "--dirty-per-second",
        "60",           "--steps", "60",  "--check-every",      "10"};
    command.insert(command.end(), way.begin(), way.end());
    const auto undisturbed = run(command);
    ASSERT_EQ(undisturbed.size(), 61);
    EXPECT_TRUE(undisturbed.back().starts_with("step=60 checksum="));
    EXPECT_NE(undisturbed[20].substr(8), undisturbed[30].substr(8));
    EXPECT_EQ(run_and_move(command), undisturbed);
  }
}

TEST_P(AppsTest, IdleScribblerKeepsItsChecksum) {
  const auto lines = run({APPS_SCRIBBLER, "--vram", "16M", "--steps-per-second", "1000",
                          "--dirty-per-second", "0", "--steps", "4", "--check-every", "2"});
  ASSERT_EQ(lines.size(), 5);
  EXPECT_EQ(lines[2].substr(7), lines[0].substr(7));
  EXPECT_EQ(lines[4].substr(7), lines[0].substr(7));
  EXPECT_TRUE(lines[1].ends_with("checksum=0000000000000000"));
}

/// Flips one bit in the first large mapping of VRAM of the process.
void disturb(const Process& program, const std::string& store) {
  for (const std::string& line : softgpu::test::mappings_of(program.pid())) {
    if (line.find(store) == std::string::npos) continue;
    std::size_t dash = 0;
    const std::uint64_t begin = std::stoull(line, &dash, 16);
    const std::uint64_t end = std::stoull(line.substr(dash + 1), nullptr, 16);
    if (end - begin < 2 * kMiB) continue;
    const std::string path = "/proc/" + std::to_string(program.pid()) + "/mem";
    const UniqueFd memory(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    char byte = 0;
    const auto at = static_cast<off_t>(begin + kMiB);
    ASSERT_EQ(::pread(memory.get(), &byte, 1, at), 1);
    byte ^= 1;
    ASSERT_EQ(::pwrite(memory.get(), &byte, 1, at), 1);
    return;
  }
  FAIL() << "no VRAM is mapped";
}

TEST_P(AppsTest, ScribblerFindsAWrongBit) {
  Program program(*this, {APPS_SCRIBBLER, "--vram", "16M", "--steps-per-second", "1000",
                          "--dirty-per-second", "0", "--check-every", "1"});
  EXPECT_TRUE(program.receive().starts_with("step=0 checksum="));
  disturb(program, here_.store());
  lines_of(program);
  EXPECT_EQ(WEXITSTATUS(program.wait()), 1);
}

/// The line that the ticker prints at a step.
std::string ticker_line(std::uint64_t step) {
  char line[96];
  std::snprintf(line, sizeof(line), "%lu %lu %lu %016lx", step, step, step, ticker_checksum(step));
  return line;
}

TEST_P(AppsTest, TickersLinesAreRightAcrossAMove) {
  Program ticker(*this, {APPS_TICKER, "--period-ms", "0"});
  std::uint64_t step = 0;
  while (step < kTickerSlices + 5) ASSERT_EQ(ticker.receive(), ticker_line(++step));
  ASSERT_TRUE(move_there(ticker));
  const std::uint64_t moved = step + 2 * kTickerSlices;
  while (step < moved) ASSERT_EQ(ticker.receive(), ticker_line(++step));
  ticker.signal(SIGTERM);
  while (!ticker.receive().empty()) {
  }
  EXPECT_EQ(ticker.wait(), 0);
}

TEST_P(AppsTest, PreforkedsLinesAreRight) {
  Program preforked(*this, {APPS_PREFORKED, "--workers", "3", "--period-ms", "0", "--vram", "4M"});
  PreforkedLines expected(3);
  for (int i = 0; i < 500; ++i) ASSERT_EQ(preforked.receive(), expected.next());
  preforked.signal(SIGTERM);
  for (const std::string& line : lines_of(preforked)) ASSERT_EQ(line, expected.next());
  EXPECT_EQ(preforked.wait(), 0);
}

TEST_P(AppsTest, HandoversLinesAreRight) {
  for (const std::string& preload : {std::string(), std::string(GCR_PRELOAD_LIBRARY)}) {
    Program handover(*this,
                     {"/usr/bin/env", "LD_PRELOAD=" + preload, APPS_HANDOVER, "--period-ms", "0"});
    HandoverLines expected;
    for (int i = 0; i < 100; ++i) ASSERT_EQ(handover.receive(), expected.next());
    handover.signal(SIGTERM);
    for (const std::string& line : lines_of(handover)) ASSERT_EQ(line, expected.next());
    EXPECT_EQ(handover.wait(), 0);
  }
}

TEST_P(AppsTest, PreforkedReportsAnEndedWorkerAndRunsOn) {
  Program preforked(*this, {APPS_PREFORKED, "--workers", "3", "--period-ms", "1"});
  PreforkedLines expected(3);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(preforked.receive(), expected.next());
  const std::string pid = std::to_string(preforked.pid());
  std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
  pid_t first = -1, second = -1;
  children >> first >> second;
  ASSERT_EQ(::kill(second, SIGKILL), 0);
  std::string line = preforked.receive();
  while (line == expected.next()) line = preforked.receive();
  EXPECT_TRUE(line.starts_with("error: worker 1 ended by signal 9")) << line;
  for (int i = 0; i < 10; ++i) {
    const std::string later = preforked.receive();
    EXPECT_TRUE(later.find(" 0 ") != later.npos || later.find(" 2 ") != later.npos) << later;
  }
  preforked.signal(SIGTERM);
  lines_of(preforked);
  EXPECT_EQ(WEXITSTATUS(preforked.wait()), 1);
}

/// A UDP socket that is bound to a free port of the loopback interface.
UniqueFd bound_socket(sockaddr_in* address) {
  UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  *address = {};
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(*address);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(address), length), 0);
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(address), &length), 0);
  return socket;
}

TEST_P(AppsTest, CounterCountsOnAcrossAMove) {
  sockaddr_in free_port{};
  sockaddr_in own{};
  bound_socket(&free_port).reset();
  const UniqueFd socket = bound_socket(&own);
  Program counter(*this, {APPS_COUNTER, "--bind", "127.0.0.1", "--port",
                          std::to_string(ntohs(free_port.sin_port)), "--vram", "4M"});
  ASSERT_TRUE(counter.receive().starts_with("listening"));
  const auto ask = [&](const std::string& request) {
    ::sendto(socket.get(), request.data(), request.size(), 0,
             reinterpret_cast<sockaddr*>(&free_port), sizeof(free_port));
    char reply[64];
    const ssize_t length = ::recv(socket.get(), reply, sizeof(reply), 0);
    return std::string(reply, static_cast<std::size_t>(length));
  };
  EXPECT_EQ(ask("next"), "101\n");
  EXPECT_EQ(ask("next"), "102\n");
  ASSERT_TRUE(move_there(counter));
  EXPECT_EQ(ask("next"), "103\n");
  EXPECT_EQ(ask("verify"), "intact\n");
  counter.signal(SIGTERM);
  EXPECT_EQ(counter.wait(), 0);
}

}  // namespace
}  // namespace gcr::apps
