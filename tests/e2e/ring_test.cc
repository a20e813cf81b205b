// A job whose ranks share VRAM and whose kernels wait for each other on the GPU, as those of NCCL
// do: moved repeatedly, no token is lost, repeated or changed.
#include "tests/apps/ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "migrate-agent/linux/procfs/procfs.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kPerLine = 6;

struct Ring {
  unsigned ranks = 2;
  std::vector<std::string> options{};
  int moves = 4;
};

void PrintTo(const Ring& ring, std::ostream* out) {
  *out << ring.ranks;
  for (const std::string& option : ring.options) *out << " " << option;
}

std::vector<std::string> ring_command(const TwoHosts& hosts, const Ring& ring) {
  std::vector<std::string> command{hosts.program_path("ring"), "--ranks",
                                   std::to_string(ring.ranks), "--per-line",
                                   std::to_string(kPerLine)};
  command.insert(command.end(), ring.options.begin(), ring.options.end());
  return command;
}

/// All lines so far are those of an undisturbed run, and more follow.
void expect_whole(const App& app, const Ring& ring) {
  ASSERT_TRUE(app.wait_for_lines(app.lines().size() + 3)) << app.output();
  apps::RingLines expected(ring.ranks, kPerLine);
  for (const std::string& line : app.lines()) ASSERT_EQ(line, expected.next());
}

class RingMoves : public testing::TestWithParam<Ring> {
 protected:
  TwoHosts hosts_{{"--gpus", "2"}};
};

TEST_P(RingMoves, EveryNumberSurvivesTheMoves) {
  const Ring& ring = GetParam();
  const HostUse before[] = {hosts_.use(Host::kA), hosts_.use(Host::kB)};
  App app = hosts_.start_app(Host::kA, ring_command(hosts_, ring));
  ASSERT_TRUE(app.wait_for_lines(3)) << app.output();
  pid_t pid = app.pid();
  const auto check = [&](Host host, const MigrateOutcome& outcome) {
    pid = outcome.pid;
    EXPECT_EQ(hosts_.use(other(host)).vram_bytes, before[host == Host::kA ? 1 : 0].vram_bytes);
    expect_whole(app, ring);
  };
  ASSERT_NO_FATAL_FAILURE(move_to_and_fro(hosts_, pid, moves_or(ring.moves), check));
  ASSERT_EQ(::kill(pid, SIGTERM), 0);
  while (procfs::read_stat(pid)) std::this_thread::sleep_for(Milliseconds(10));
  EXPECT_THAT(app.output(), testing::Not(HasSubstr("error")));
}

INSTANTIATE_TEST_SUITE_P(
    Each, RingMoves,
    testing::Values(Ring{2, {}, 10}, Ring{4, {"--host-memory", "--legacy-ipc", "--skew-ms", "3"}},
                    Ring{8, {"--gpus", "2"}}, Ring{2, {"--graph", "--vram", "64M"}}),
    [](const auto& info) {
      return "Ranks" + std::to_string(info.param.ranks) + "n" + std::to_string(info.index);
    });

TEST(RingWithOutsiders, VramSharedWithAnOutsiderIsRefused) {
  TwoHosts hosts;
  const Ring ring;
  const App app = hosts.start_app(Host::kA, ring_command(hosts, ring));
  ASSERT_TRUE(app.wait_for_lines(3)) << app.output();
  const auto tree = procfs::tree(app.pid());
  ASSERT_EQ(tree.size(), 3u);
  // Only one rank: the other has its memory, and is not below it.
  const MigrateOutcome outcome = hosts.migrate(Host::kA, tree[1]);
  EXPECT_EQ(outcome.exit_code, kRefusedExit);
  EXPECT_THAT(outcome.err, HasSubstr("foreign-handles"));
  EXPECT_THAT(outcome.err,
              HasSubstr("process " + std::to_string(tree[2]) + " (exe) has GPU memory "));
  EXPECT_THAT(outcome.err,
              HasSubstr("not a descendant of process " + std::to_string(tree[1]) + " (exe)"));
  expect_whole(app, ring);
}

/// The driver does not interrupt a restored process for others, and its kernels wait for each
/// other.
TEST(RingOnASharedGpu, GpuInUseIsRefusedUnlessAccepted) {
  TwoHosts hosts({"--gpus", "2", "--nvml", "true"});
  const Ring ring;
  const App app = hosts.start_app(Host::kA, ring_command(hosts, ring));
  const App other = hosts.start_app(Host::kB, {hosts.program_path("ticker")});
  ASSERT_TRUE(app.wait_for_lines(3)) << app.output();
  ASSERT_TRUE(other.wait_for_lines(1)) << other.output();

  // NVIDIA's library counts processes of the whole machine: an agent in a namespace cannot identify
  // them, and allows the job.
  std::vector<std::string> options;
  if (procfs::namespace_link(::getpid(), "pid") == procfs::kFirstPidNamespace) {
    const MigrateOutcome refused = hosts.migrate(Host::kA, app.pid());
    EXPECT_EQ(refused.exit_code, kRefusedExit);
    EXPECT_THAT(refused.err, HasSubstr("is used by process " + std::to_string(other.pid())));
    EXPECT_THAT(refused.err, HasSubstr("[busy-gpu]"));
    expect_whole(app, ring);
    options = {"--accept", "busy-gpu"};
  }
  const MigrateOutcome there = hosts.migrate(Host::kA, app.pid(), options);
  ASSERT_TRUE(migrated(there));
  expect_whole(app, ring);
  ASSERT_TRUE(migrated(hosts.migrate(Host::kB, there.pid)));
  expect_whole(app, ring);

  // A job that does not wait for another GPU may share its GPU.
  const App single = hosts.start_app(Host::kA, {hosts.program_path("ticker")});
  ASSERT_TRUE(single.wait_for_lines(1)) << single.output();
  EXPECT_TRUE(migrated(hosts.migrate(Host::kA, single.pid())));
}

}  // namespace
}  // namespace gcr::e2e
