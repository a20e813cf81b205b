// The ring on the software GPU, with and without the preload library: undisturbed, and with ranks
// that are stopped, end, or have their memory changed.
#include "tests/apps/ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include "preload/cuda/abi/driver_abi.h"
#include "src/base/unique_fd.h"
#include "src/base/units.h"
#include "tests/apps/on_face.h"
#include "tests/softgpu/subjects.h"

namespace gcr::apps {
namespace {

using softgpu::test::Face;
using softgpu::test::kAmdGpuA;
using softgpu::test::kAmdGpuB;
using softgpu::test::kGpuA;
using softgpu::test::kGpuB;
using softgpu::test::Machine;
using softgpu::test::Process;
using softgpu::test::Subject;
using Words = std::vector<std::string>;

constexpr std::uint64_t kPerLine = 6;

/// A ring with some options, without pauses.
Words ring(Face face, unsigned ranks, const Words& more, const std::string& preload = "") {
  Words command{
      "/usr/bin/env", "LD_PRELOAD=" + preload,  APPS_RING,     "--ranks", std::to_string(ranks),
      "--per-line",   std::to_string(kPerLine), "--period-ms", "0"};
  command.insert(command.end(), more.begin(), more.end());
  return on_face(face, command);
}

std::vector<pid_t> ranks_of(const Process& ring) {
  const std::string pid = std::to_string(ring.pid());
  std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
  std::vector<pid_t> pids;
  for (pid_t child = 0; children >> child;) pids.push_back(child);
  return pids;
}

/// Ends it and checks its remaining output.
void expect_good_end(Process& ring, RingLines& expected) {
  ring.signal(SIGTERM);
  for (std::string line; !(line = ring.receive()).empty();) ASSERT_EQ(line, expected.next());
  EXPECT_EQ(ring.wait(), 0);
}

/// The lines until the first wrong one.
std::string first_wrong_line(Process& ring, RingLines& expected) {
  std::string line = ring.receive();
  while (line == expected.next()) line = ring.receive();
  return line;
}

class RingTest : public softgpu::test::FaceTest {
 protected:
  static Words ring(unsigned ranks, const Words& more) {
    return apps::ring(GetParam(), ranks, more);
  }

  Machine machine_{{{gpu_a(), "128M"}, {gpu_b(), "128M"}}};
};

INSTANTIATE_TEST_SUITE_P(Faces, RingTest, softgpu::test::kBothFaces, softgpu::test::name_of_face);

/// Face, ranks, under the preload library.
class UndisturbedRing : public testing::TestWithParam<std::tuple<Face, unsigned, bool>> {};

TEST_P(UndisturbedRing, EveryLineIsRight) {
  const auto [face, ranks, under_library] = GetParam();
  const std::vector<Words> ways{{},
                                {"--host-memory", "--legacy-ipc", "--vram", "4M"},
                                {"--tcp", "--skew-ms", "0"},
                                {"--graph", "--words", "5000", "--host-memory"},
                                {"--gpus", "1", "--words", "0"}};
  const Machine machine{{{kGpuA, "128M"}, {kGpuB, "128M"}, {kAmdGpuA, "128M"}, {kAmdGpuB, "128M"}}};
  for (Words way : ways) {
    if (face == Face::kHip) std::erase(way, "--host-memory");  // HIP creates none
    SCOPED_TRACE(testing::PrintToString(way));
    Process program(machine, ring(face, ranks, way, under_library ? GCR_PRELOAD_LIBRARY : ""));
    RingLines expected(ranks, kPerLine);
    for (int i = 0; i < 50; ++i) ASSERT_EQ(program.receive(), expected.next());
    expect_good_end(program, expected);
  }
}

std::string name_of_run(const testing::TestParamInfo<UndisturbedRing::ParamType>& info) {
  const auto [face, ranks, under_library] = info.param;
  return std::to_string(ranks) + (face == Face::kHip ? "OnHip" : "OnCuda") +
         (under_library ? "UnderTheLibrary" : "Alone");
}

INSTANTIATE_TEST_SUITE_P(Each, UndisturbedRing,
                         testing::Combine(softgpu::test::kBothFaces, testing::Values(2, 4, 8),
                                          testing::Bool()),
                         name_of_run);

/// Its kernel waits for the neighbour's, so the driver's lock waits, too: stepping exists for this.
TEST_P(RingTest, RankCannotBeLockedWhileItsNeighbourIsStopped) {
  Process program(machine_, ring(2, {}));
  Subject agent(machine_, GetParam());
  RingLines expected(2, kPerLine);
  ASSERT_EQ(program.receive(), expected.next());
  const std::vector<pid_t> ranks = ranks_of(program);
  ASSERT_EQ(ranks.size(), 2);
  const std::string rank = std::to_string(ranks[0]);
  // Between two kernels it can be locked. It reaches the one that waits, unless its neighbour was
  // stopped between two lines.
  const auto reaches_wait = [&] {
    for (int i = 0; i < 20; ++i) {
      if (agent.ask("lock " + rank + " 20") != "0") return true;
      EXPECT_EQ(agent.ask("unlock " + rank), "0");
    }
    return false;
  };
  ::kill(ranks[1], SIGSTOP);
  while (!reaches_wait()) {
    ::kill(ranks[1], SIGCONT);
    ASSERT_EQ(program.receive(), expected.next());
    ::kill(ranks[1], SIGSTOP);
  }
  EXPECT_EQ(agent.ask("lock " + rank + " 200"), std::to_string(CUDA_ERROR_NOT_READY));
  ::kill(ranks[1], SIGCONT);
  EXPECT_EQ(agent.ask("lock " + rank + " 0"), "0");
  EXPECT_EQ(agent.ask("unlock " + rank), "0");
  expect_good_end(program, expected);
}

TEST_P(RingTest, EndOfARankEndsAll) {
  Process program(machine_, ring(4, {}));
  RingLines expected(4, kPerLine);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(program.receive(), expected.next());
  const std::vector<pid_t> ranks = ranks_of(program);
  ASSERT_EQ(ranks.size(), 4);
  ::kill(ranks[2], SIGKILL);
  EXPECT_EQ(first_wrong_line(program, expected), "error: rank 2 ended by signal 9");
  EXPECT_EQ(WEXITSTATUS(program.wait()), 1);
  for (const pid_t rank : ranks) EXPECT_EQ(::kill(rank, 0), -1) << rank;
}

TEST_P(RingTest, EndOfTheParentEndsAll) {
  Process program(machine_, ring(4, {}));
  RingLines expected(4, kPerLine);
  ASSERT_EQ(program.receive(), expected.next());
  program.signal(SIGKILL);
  while (!program.receive().empty()) {  // until no process has its output open
  }
}

/// Overwrites a word of every message in the memory that a rank shares.
void disturb(pid_t rank, const std::string& store, std::uint64_t ranks, std::uint64_t words) {
  const UniqueFd memory(
      ::open(("/proc/" + std::to_string(rank) + "/mem").c_str(), O_RDWR | O_CLOEXEC));
  for (const std::string& line : softgpu::test::mappings_of(rank)) {
    if (line.find(store) == std::string::npos) continue;
    std::size_t dash = 0;
    const std::uint64_t begin = std::stoull(line, &dash, 16);
    const std::uint64_t end = std::stoull(line.substr(dash + 1), nullptr, 16);
    if (end - begin != 2 * kMiB) continue;
    for (std::uint64_t message = 0; message < ranks; ++message) {
      const std::uint64_t word = message * (words + kRingHeaderWords) + kRingHeaderWords + 7;
      const std::uint64_t wrong = 0x77;
      if (::pwrite(memory.get(), &wrong, 8, static_cast<off_t>(begin + word * 8)) != 8) return;
    }
  }
}

TEST_P(RingTest, ReceivingRankFindsAWrongWord) {
  Process program(machine_, ring(2, {"--words", "100", "--skew-ms", "5"}));
  RingLines expected(2, kPerLine);
  ASSERT_EQ(program.receive(), expected.next());
  const std::vector<pid_t> ranks = ranks_of(program);
  ASSERT_EQ(ranks.size(), 2);
  std::string line;
  do {  // a message can be changed only until it has been received
    while (!program.has_output()) disturb(ranks[1], machine_.store(), 2, 100);
    line = program.receive();
  } while (line == expected.next());
  EXPECT_TRUE(line.starts_with("error: rank ")) << line;
  EXPECT_NE(line.find(" words are wrong by step "), std::string::npos) << line;
  while (!program.receive().empty()) {
  }
  EXPECT_EQ(WEXITSTATUS(program.wait()), 1);
}

}  // namespace
}  // namespace gcr::apps
