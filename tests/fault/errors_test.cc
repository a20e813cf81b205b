// Errors from below, each provoked for real: resources that the machine lacks, refusals of the
// driver and CRIU, actions of the application. After each exactly one copy runs on, nothing is left
// over, and the next migration is unaffected.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/fault/pair.h"

namespace gcr::fault::test {
namespace {

using e2e::other;

/// The name of a host in shell commands.
struct Names {
  std::string directory;
  std::string vram;     ///< a tmpfs
  std::string runtime;  ///< a tmpfs
  std::string state;    ///< a tmpfs
  std::string store;    ///< of the software GPU
  std::string config;
  std::string network;
  pid_t daemon;
};

class ErrorsTest : public testing::Test {
 protected:
  static void TearDownTestSuite() { pair_.reset(); }

  /// One pair serves many tests; after a failure a new one is made.
  void SetUp() override {
    if (pair_ == nullptr) renew_pair();
  }

  static void renew_pair() {
    pair_.reset();
    // In its own mount namespace an agent's view of the machine can be changed.
    pair_ = std::make_unique<Pair>(
        ticker(), std::vector<std::string>{"--state-size", "64M", "--prepare-a", "true",
                                           "--prepare-b", "true"});
  }

  Names names(Side side) const {
    const e2e::TwoHosts& hosts = pair_->hosts();
    const Host host = side == Side::kSource ? pair_->source() : other(pair_->source());
    return {hosts.directory(host),
            hosts.variable("VRAM", host),
            hosts.variable("RUNTIME", host),
            hosts.variable("STATE", host),
            std::filesystem::path(hosts.variable("VRAM", host)).parent_path(),
            hosts.variable("CONFIG", host),
            hosts.network(host),
            hosts.agent_pid(host)};
  }

  /// After this the process runs on at the source, and then it migrates normally.
  static void expect_to_stay(Scenario scenario) {
    scenario.survivor = Side::kSource;
    expect_one_copy(scenario);
    Scenario undisturbed;
    undisturbed.survivor = Side::kDestination;
    expect_one_copy(undisturbed);
  }

  /// Whether it migrated.
  static bool expect_one_copy(const Scenario& scenario) {
    const Result result = pair_->run(scenario);
    EXPECT_TRUE(result.passed()) << scenario.describe() << ": " << result.failure;
    if (!result.passed()) renew_pair();
    return result.migrated;
  }

  /// `command` runs before the migration begins; `undo` when gcr-migrate has ended.
  static Scenario before(std::string command, std::string undo) {
    Scenario scenario;
    scenario.harm = Harm::kRun;
    scenario.command = std::move(command);
    scenario.undo = std::move(undo);
    return scenario;
  }

  static Scenario at(std::string point, std::string command, std::string undo = "") {
    Scenario scenario = before(std::move(command), std::move(undo));
    scenario.side = point.starts_with("source") ? Side::kSource : Side::kDestination;
    scenario.point = std::move(point);
    return scenario;
  }

  static Scenario harm_at(Harm harm, std::string point, Milliseconds lasts = Milliseconds(0)) {
    Scenario scenario;
    scenario.harm = harm;
    scenario.side = point.starts_with("source") ? Side::kSource : Side::kDestination;
    scenario.point = std::move(point);
    scenario.lasts = lasts;
    return scenario;
  }

  /// Fills a tmpfs, and empties it again.
  static std::string fill(const std::string& directory) {
    return fmt::format("fallocate -l $(df -B1 --output=avail {0} | tail -n 1) {0}/filler",
                       directory);
  }
  static std::string empty(const std::string& directory) {
    return fmt::format("rm -f {}/filler", directory);
  }

  static std::unique_ptr<Pair> pair_;
};

std::unique_ptr<Pair> ErrorsTest::pair_;

TEST_F(ErrorsTest, SourceResumesIfAJournalsDiskIsFull) {
  for (const Side side : {Side::kSource, Side::kDestination}) {
    const Names host = names(side);
    expect_to_stay(before(fill(host.state), empty(host.state)));
  }
}

TEST_F(ErrorsTest, SourceResumesIfDestinationVramIsTaken) {
  for (const char* point : {"destination.preflighted", "destination.prepared"}) {
    const Names host = names(Side::kDestination);
    expect_to_stay(at(point, fill(host.vram), empty(host.vram)));
  }
}

TEST_F(ErrorsTest, SourceResumesIfHugepagesAreGone) {
  const Names host = names(Side::kDestination);
  const std::string hide = "mount -t tmpfs none /sys/kernel/mm/hugepages";
  const std::string show =
      fmt::format("nsenter -t {} -m umount /sys/kernel/mm/hugepages && ", host.daemon);
  const std::string config = "sed -i 's/^hugepages = .*/hugepages = \"{}\"/' " + host.config;
  expect_to_stay(
      at("destination.began",
         fmt::format(fmt::runtime("nsenter -t $PPID -m " + hide + " && " + config), "require"),
         show + fmt::format(fmt::runtime(config), "auto")));
}

TEST_F(ErrorsTest, OneCopyRunsIfMemoryRunsOut) {
  const std::string limit =
      "prlimit --as=$(($(awk '/VmSize/ { print $2 }' /proc/$PPID/status) * 1024 + 1048576)) "
      "--pid $PPID";
  int migrated = 0;
  for (const char* point : {"destination.preflighted", "source.preflighted", "source.prepared",
                            "destination.prepared", "destination.imaged"}) {
    migrated += expect_one_copy(at(point, limit)) ? 1 : 0;
  }
  EXPECT_LT(migrated, 5) << "the limit had no effect";
}

TEST_F(ErrorsTest, OneCopyRunsIfDescriptorsRunOut) {
  for (const Side side : {Side::kSource, Side::kDestination}) {
    int migrated = 0;
    for (const int more : {0, 6, 12, 20, 32, 48}) {
      const Names host = names(side);
      const std::string limit = fmt::format("prlimit --pid {} --nofile=", host.daemon);
      const std::string soft =
          fmt::format("$(($(ls /proc/{}/fd | wc -l) + {})):", host.daemon, more);
      migrated += expect_one_copy(before(limit + soft, limit + "1024:")) ? 1 : 0;
    }
    EXPECT_LT(migrated, 6) << "the limit had no effect";
  }
}

TEST_F(ErrorsTest, SourceResumesIfTheDriverFails) {
  struct Refusal {
    Side side;
    const char* what;
  };
  for (const Refusal& refusal : {Refusal{Side::kSource, "lock 600"},
                                 {Side::kSource, "checkpoint 801"},
                                 {Side::kDestination, "restore 2"},
                                 {Side::kDestination, "restore 101"},
                                 {Side::kDestination, "unlock 999"}}) {
    const std::string file = names(refusal.side).store + "/refuse";
    expect_to_stay(before(fmt::format("echo {} >{}", refusal.what, file), "rm " + file));
  }
}

TEST_F(ErrorsTest, SourceResumesIfCriuFails) {
  for (const Side side : {Side::kSource, Side::kDestination}) {
    const Names host = names(side);
    const std::string wrapper = host.directory + "/failing-criu";
    const std::string make = fmt::format(
        "cp {0} {0}.kept && printf '#!/bin/sh\nexit 1\n' >{1} && chmod +x {1} && "
        "sed -i 's|^command = .*|command = [\"{1}\"]|' {0}",
        host.config, wrapper);
    expect_to_stay(before(make, fmt::format("mv {0}.kept {0}", host.config)));
  }
}

TEST_F(ErrorsTest, SourceResumesIfCriuIsKilled) {
  for (const auto& [side, point] : {std::pair(Side::kSource, "source.gated"),
                                    std::pair(Side::kDestination, "destination.prepared")}) {
    const Names host = names(side);
    const std::string killed = host.directory + "/killed";
    // The reaper has CRIU's command among its arguments.
    expect_to_stay(
        at(point, fmt::format("for p in $(ip netns pids {}); do "
                              "tr '\\0' ' ' </proc/$p/cmdline | "
                              "grep 'criu .* \\(dump\\|restore\\) ' | grep -qv gcr-reaper && "
                              "kill -KILL $p && echo $p >>{}; done; true",
                              host.network, killed)));
    EXPECT_TRUE(std::filesystem::remove(killed)) << point;
  }
  expect_to_stay(at("destination.criu-restored", "exit 1"));
}

TEST_F(ErrorsTest, OneCopyRunsIfAPeerIsSilent) {
  for (const char* point : {"source.prepared", "source.dumped", "source.voted",
                            "destination.prepared", "destination.imaged", "destination.restored"}) {
    expect_one_copy(harm_at(Harm::kStop, point, kPeerSilence + Milliseconds(700)));
  }
}

TEST_F(ErrorsTest, SlowPeerIsWaitedFor) {
  for (const char* point : {"source.gated", "source.voted", "destination.preflighted",
                            "destination.imaged", "destination.restored", "destination.resumed"}) {
    Scenario scenario = harm_at(Harm::kStop, point, kPeerSilence / 3);
    scenario.survivor = Side::kDestination;
    expect_one_copy(scenario);
  }
}

TEST_F(ErrorsTest, EndOfTheApplicationLeavesNothing) {
  for (const Harm harm : {Harm::kKillApp, Harm::kEndApp}) {
    for (const char* point :
         {"source.began", "source.connected", "source.preflighted", "source.prepared",
          "source.copied", "source.gated", "source.detached", "source.checkpointed",
          "source.dumped", "source.awaiting", "source.voted"}) {
      expect_one_copy(harm_at(harm, point));
    }
  }
}

TEST(ShippedAgent, FaultFileHasNoEffect) {
  e2e::TwoHosts hosts;
  const e2e::App ticker = hosts.start_app(Host::kA, {hosts.program_path("ticker")});
  ASSERT_TRUE(ticker.wait_for_lines(1));
  const std::string file = hosts.directory(Host::kA) + "/faults";
  std::ofstream(file) << "source.began error\n";
  EXPECT_TRUE(hosts.migrate(Host::kA, ticker.pid()).migrated());
  EXPECT_TRUE(std::filesystem::exists(file)) << "the point was reached";
}

/// The driver's descriptors of memory are recognised by their links: with the software GPU, by its
/// name.
TEST(Application, CannotPassOnSharedVramDuringAMove) {
  Pair pair(ring());
  const auto app = pair.hosts().directory() + "/thief.py";
  std::ofstream(app) << R"(
import ctypes, os, pathlib, sys, time
libc = ctypes.CDLL(None)
for fd in [entry for pid in sys.argv[1:] for entry in pathlib.Path(f"/proc/{pid}").glob("fd/*")]:
    pid = fd.parent.parent
    try:
        if (pid / "exe").readlink().name == "ring" and "softgpu" in str(fd.readlink()):
            libc.syscall(438, os.pidfd_open(int(pid.name)), int(fd.name), 0)  # pidfd_getfd
    except FileNotFoundError:
        pass  # it has ended
os.close(1)
time.sleep(4)
)";
  Scenario scenario;
  scenario.harm = Harm::kRun;
  scenario.point = "source.gated";
  // The pipe ends once it has them.
  scenario.command = fmt::format("(python3 {} $(ip netns pids {}) 2>/dev/null </dev/null &) | cat",
                                 app, pair.hosts().network(pair.source()));
  scenario.survivor = Side::kSource;
  const Result result = pair.run(scenario);
  EXPECT_TRUE(result.passed()) << result.failure;
  EXPECT_EQ(result.exit_code, 1);
}

TEST(Application, MayAllocateAndFreeConstantly) {
  Pair pair(ticker({"--churn", "1", "--period-ms", "20"}));
  for (int i = 0; i < 6; ++i) {
    Scenario undisturbed;
    undisturbed.survivor = Side::kDestination;
    const Result result = pair.run(undisturbed);
    EXPECT_TRUE(result.passed()) << result.failure;
  }
}

TEST(Application, MayStartProcessesConstantly) {
  Pair pair(ticker({"--spawn", "5", "--period-ms", "20"}));
  for (int i = 0; i < 10; ++i) {
    const Result result = pair.run(Scenario{});
    EXPECT_TRUE(result.passed()) << result.failure;
  }
}

}  // namespace
}  // namespace gcr::fault::test
