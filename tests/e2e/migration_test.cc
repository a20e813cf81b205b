// A migration changes nothing for the program that moves, and leaves nothing on the hosts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <sstream>
#include <string>

#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

TEST(Migration, CounterAnswersEveryNumberOnceAcrossTheMove) {
  TwoHosts hosts;
  App counter = start_counter(hosts, Host::kA, 16 * kMiB);
  UdpClient client(hosts.variable("NS", Host::kA));
  int expected = kCounterFirst;
  for (int i = 0; i < 50; ++i) ASSERT_EQ(ask_counter(client, hosts, Host::kA), expected++);

  const MigrateOutcome outcome = hosts.migrate(Host::kA, counter.pid());

  ASSERT_TRUE(migrated(outcome));
  EXPECT_GE(outcome.vram_bytes, 16 * kMiB);
  EXPECT_GT(outcome.downtime_ms, 0);
  EXPECT_GT(outcome.total_ms, outcome.downtime_ms);
  for (int i = 0; i < 50; ++i) ASSERT_EQ(ask_counter(client, hosts, Host::kB), expected++);
  EXPECT_TRUE(counter_is_intact(client, hosts, Host::kB));
}

TEST(Migration, SourceEndsAndReleasesItsMemory) {
  TwoHosts hosts;
  const HostUse source_before = hosts.use(Host::kA);
  const HostUse destination_before = hosts.use(Host::kB);
  App counter = start_counter(hosts, Host::kA, 32 * kMiB);
  EXPECT_GE(hosts.use(Host::kA).vram_bytes, source_before.vram_bytes + 32 * kMiB);

  const MigrateOutcome outcome = hosts.migrate(Host::kA, counter.pid());

  ASSERT_TRUE(migrated(outcome));
  EXPECT_TRUE(counter.program().wait(Milliseconds(60'000)));
  EXPECT_EQ(hosts.use_coming_to(Host::kA, source_before), source_before);
  const HostUse destination_after = hosts.use(Host::kB);
  EXPECT_GE(destination_after.vram_bytes, destination_before.vram_bytes + 32 * kMiB);
  EXPECT_EQ(destination_after.workers, 0U);
  EXPECT_EQ(destination_after.runtime_bytes, destination_before.runtime_bytes);
}

/// Moves a program that runs until it is stopped, and lets it run on there for a while.
void move_and_end(TwoHosts& hosts, const App& app) {
  ASSERT_TRUE(app.wait_for_lines(3));
  const MigrateOutcome outcome = hosts.migrate(Host::kA, app.pid());
  ASSERT_TRUE(migrated(outcome));
  ASSERT_TRUE(app.wait_for_lines(app.lines().size() + 3));
  ASSERT_EQ(::kill(outcome.pid, SIGTERM), 0);
}

/// The program of `start` prints the same with and without a move.
void expect_as_undisturbed(const std::function<App(TwoHosts& hosts)>& start) {
  TwoHosts hosts;
  const App moved = start(hosts);
  ASSERT_NO_FATAL_FAILURE(move_and_end(hosts, moved));
  const App undisturbed = start(hosts);
  EXPECT_TRUE(printed_what_prints(moved, undisturbed));
}

TEST(Migration, ManyThreadsMoveThereAndBack) {
  TwoHosts hosts;
  const App app = hosts.start_app(Host::kA, {hosts.program_path("ticker"), "--threads", "300"});
  ASSERT_TRUE(app.wait_for_lines(3));
  const std::size_t threads = procfs::threads(app.pid()).size();
  EXPECT_GT(threads, 300u);
  pid_t pid = app.pid();
  for (const Host host : {Host::kA, Host::kB}) {
    const MigrateOutcome outcome = hosts.migrate(host, pid);
    ASSERT_TRUE(migrated(outcome));
    pid = outcome.pid;
    EXPECT_EQ(procfs::threads(pid).size(), threads);
    ASSERT_TRUE(app.wait_for_lines(app.lines().size() + 3));
  }
  ASSERT_EQ(::kill(pid, SIGTERM), 0);
  const App undisturbed =
      hosts.start_app(Host::kA, {hosts.program_path("ticker"), "--threads", "300"});
  EXPECT_TRUE(printed_what_prints(app, undisturbed));
}

TEST(Migration, StencilPrintsTheSameChecksums) {
  expect_as_undisturbed(
      [](TwoHosts& hosts) { return start_stencil(hosts, Host::kA, 32 * kMiB, 20); });
}

/// While it is restored no thread may run that reports on the GPU.
TEST(Migration, ProgramThatRecreatesContextsMoves) {
  expect_as_undisturbed([](TwoHosts& hosts) {
    return hosts.start_app(Host::kA, {hosts.program_path("ticker"), "--contexts", "10"});
  });
}

TEST(Migration, FiveThousandSmallBuffersMove) {
  expect_as_undisturbed([](TwoHosts& hosts) { return start_small_buffers(hosts, Host::kA, 200); });
}

TEST(Migration, StreamOrderedMemoryIsMovedAsVram) {
  TwoHosts hosts;
  const App moved = start_pool_stencil(hosts, Host::kA, 64 * kMiB, 20);
  ASSERT_TRUE(moved.wait_for_lines(3));
  const MigrateOutcome outcome = hosts.migrate(Host::kA, moved.pid());
  ASSERT_TRUE(migrated(outcome));
  EXPECT_GE(outcome.vram_bytes, 64 * kMiB);
  ASSERT_TRUE(moved.wait_for_lines(moved.lines().size() + 3));
  ASSERT_EQ(::kill(outcome.pid, SIGTERM), 0);
  const App undisturbed = start_pool_stencil(hosts, Host::kA, 64 * kMiB, 20);
  EXPECT_TRUE(printed_what_prints(moved, undisturbed));
}

TEST(Migration, EveryWayToAllocateArrivesIntact) {
  expect_as_undisturbed([](TwoHosts& hosts) { return start_alloc_styles(hosts, Host::kA, 20); });
}

/// As a job with one of its node's GPUs: the driver lets it import no memory of another GPU.
TEST(Migration, ProgramThatSawOneOfTwoGpusMovesToAnother) {
  TwoHosts hosts({"--gpus", "2"});
  std::istringstream words(hosts.variable("GPU_ENV", Host::kA));
  std::string devices;
  for (std::string word; words >> word;) {
    if (word.starts_with("SOFTGPU_DEVICES=")) devices = word.substr(0, word.find(','));
  }
  std::vector<std::string> command = alloc_styles_command(hosts, 20);
  command.insert(command.begin(), {"env", devices, "SOFTGPU_SAW_SOME=1"});
  const App moved = hosts.start_app(Host::kA, command);
  ASSERT_TRUE(moved.wait_for_lines(3));
  const MigrateOutcome there = hosts.migrate(Host::kA, moved.pid());
  ASSERT_TRUE(migrated(there));
  EXPECT_THAT(read_file(hosts.variable("LOG", Host::kB)),
              testing::HasSubstr("copied into memory of its own"));
  ASSERT_TRUE(moved.wait_for_lines(moved.lines().size() + 3));
  const MigrateOutcome back = hosts.migrate(Host::kB, there.pid);
  ASSERT_TRUE(migrated(back));
  EXPECT_THAT(read_file(hosts.variable("LOG", Host::kA)),
              testing::Not(testing::HasSubstr("memory of its own")));
  ASSERT_TRUE(moved.wait_for_lines(moved.lines().size() + 3));
  ASSERT_EQ(::kill(back.pid, SIGTERM), 0);
  EXPECT_TRUE(printed_what_prints(moved, hosts.start_app(Host::kA, command)));
}

TEST(Migration, ProgramMovesToAndFroTenTimes) {
  TwoHosts hosts;
  App counter = start_counter(hosts, Host::kA, 32 * kMiB);
  UdpClient client(hosts.variable("NS", Host::kA));
  int expected = kCounterFirst;
  ASSERT_EQ(ask_counter(client, hosts, Host::kA), expected);
  std::optional<HostUse> left_before[2];
  const std::uint64_t descriptors = hosts.descriptors(Host::kA);

  const auto check = [&](Host host, const MigrateOutcome&) {
    const HostUse left = hosts.use(other(host));
    auto& before = left_before[host == Host::kA ? 1 : 0];
    if (before) {
      EXPECT_EQ(left, *before);
    }
    before = left;
    ASSERT_EQ(ask_counter(client, hosts, host), ++expected);
  };
  ASSERT_NO_FATAL_FAILURE(move_to_and_fro(hosts, counter.pid(), 10, check));
  EXPECT_TRUE(counter_is_intact(client, hosts, Host::kA));
  // The connection to the last worker may still be open; ten leaked ones would show.
  EXPECT_TRUE(hosts.wait_for_descriptors(Host::kA, descriptors + 1));
}

TEST(Migration, GoesToTheGpuTheDestinationAllows) {
  TwoHosts hosts({"--gpus", "2", "--only-gpu-b", "1"});
  App counter = start_counter(hosts, Host::kA, 64 * kMiB);
  UdpClient client(hosts.variable("NS", Host::kA));

  const MigrateOutcome outcome = hosts.migrate(Host::kA, counter.pid());

  ASSERT_TRUE(migrated(outcome));
  EXPECT_EQ(ask_counter(client, hosts, Host::kB), kCounterFirst);
  EXPECT_GE(hosts.vram_used(Host::kB, 1), 64 * kMiB);
  EXPECT_LT(hosts.vram_used(Host::kB, 0), 64 * kMiB);
}

TEST(Migration, GoesToTheGpuOfTheDeviceMap) {
  TwoHosts hosts({"--gpus", "2"});
  const auto gpu = [&](Host host, int number) { return gpu_of(hosts, host, number); };
  App counter = start_counter(hosts, Host::kA, 64 * kMiB);
  UdpClient client(hosts.variable("NS", Host::kA));

  const MigrateOutcome refused = hosts.migrate(
      Host::kA, counter.pid(), {"--device-map", gpu(Host::kA, 0) + "=" + gpu(Host::kA, 1)});
  EXPECT_EQ(refused.exit_code, kRefusedExit);
  EXPECT_THAT(refused.err, testing::HasSubstr("the destination has no such GPU"));

  const MigrateOutcome there = hosts.migrate(
      Host::kA, counter.pid(), {"--device-map", gpu(Host::kA, 0) + "=" + gpu(Host::kB, 1)});
  ASSERT_TRUE(migrated(there));
  EXPECT_EQ(ask_counter(client, hosts, Host::kB), kCounterFirst);
  EXPECT_GE(hosts.vram_used(Host::kB, 1), 64 * kMiB);
  EXPECT_LT(hosts.vram_used(Host::kB, 0), 64 * kMiB);

  const MigrateOutcome back =
      hosts.migrate(Host::kB, there.pid,
                    {"--device-map", gpu(Host::kB, 1) + "=" + gpu(Host::kA, 1) + "," +
                                         gpu(Host::kB, 0) + "=" + gpu(Host::kA, 0)});
  ASSERT_TRUE(migrated(back));
  EXPECT_EQ(ask_counter(client, hosts, Host::kA), kCounterFirst + 1);
  EXPECT_GE(hosts.vram_used(Host::kA, 1), 64 * kMiB);
}

TEST(Migration, GoesToTheGpuOfTheMapDespiteItsPointers) {
  TwoHosts hosts({"--gpus", "2"});
  const App moved = start_alloc_styles(hosts, Host::kA, 20);
  ASSERT_TRUE(moved.wait_for_lines(3));
  const MigrateOutcome there = hosts.migrate(
      Host::kA, moved.pid(),
      {"--device-map", gpu_of(hosts, Host::kA, 0) + "=" + gpu_of(hosts, Host::kB, 1) + "," +
                           gpu_of(hosts, Host::kA, 1) + "=" + gpu_of(hosts, Host::kB, 0)});
  ASSERT_TRUE(migrated(there));
  EXPECT_GE(hosts.vram_used(Host::kB, 1), 16 * kMiB);
  EXPECT_TRUE(moved.wait_for_lines(moved.lines().size() + 3)) << moved.output();
  ASSERT_EQ(::kill(there.pid, SIGTERM), 0);
  const App undisturbed = start_alloc_styles(hosts, Host::kA, 20);
  EXPECT_TRUE(printed_what_prints(moved, undisturbed));
}

}  // namespace
}  // namespace gcr::e2e
