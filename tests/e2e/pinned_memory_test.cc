// Page-locked memory of the driver, to which the GPU writes without page tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "migrate-agent/process/inspect/files.h"
#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/checkpoints.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

constexpr std::uint64_t kPinned = 96 * kMiB;
constexpr std::size_t kFewLines = 3;

/// As the driver created it, not as CRIU would recreate it.
bool has_memory_of_the_driver(pid_t pid) {
  return std::ranges::any_of(process::named_mappings(pid, "/dev/zero"), [](const auto& mapping) {
    return mapping.path == "/dev/zero" && mapping.shared;
  });
}

class PinnedMemory : public CheckpointTest {
 protected:
  /// All of its lines.
  void expect_as_undisturbed(const App& app) {
    EXPECT_TRUE(printed_what_prints(app, start_pinned(hosts_, Host::kA, kPinned, 20)));
  }

  /// Fails in the middle of a move, after the memory was hidden.
  void fail_at(Host host, const std::string& fault, pid_t pid) {
    std::ofstream(hosts_.directory(host) + "/faults") << fault << "\n";
    EXPECT_FALSE(hosts_.migrate(Host::kA, pid).migrated()) << fault;
    EXPECT_TRUE(std::filesystem::exists(hosts_.directory(host) + "/faults.hit")) << fault;
  }
};

TEST_F(PinnedMemory, IsSentInRoundsWithoutCriu) {
  const App moved = start_pinned(hosts_, Host::kA, kPinned, 20);
  pid_t pid = moved.pid();
  Host host = Host::kA;
  for (int move = 0; move < 3; ++move) {
    ASSERT_TRUE(moved.wait_for_lines(moved.lines().size() + kFewLines)) << moved.output();
    ASSERT_TRUE(has_memory_of_the_driver(pid));
    const MigrateReport outcome = hosts_.migrate_for_report(host, pid, {});
    ASSERT_TRUE(outcome.exit_code == 0 && outcome.report.verified()) << outcome.err;
    const auto& report = outcome.report;
    EXPECT_EQ(report.image_mode(), "rounds");
    EXPECT_GE(report.early_image_bytes(), kPinned / 2);  // compressed
    EXPECT_GE(report.memory_image_bytes(), kPinned);
    EXPECT_LT(report.image_bytes() - report.memory_image_bytes(), kPinned / 4);
    pid = static_cast<pid_t>(report.destination_pid());
    host = other(host);
  }
  ASSERT_TRUE(moved.wait_for_lines(moved.lines().size() + kFewLines)) << moved.output();
  ASSERT_EQ(::kill(pid, SIGTERM), 0);
  expect_as_undisturbed(moved);
}

TEST_F(PinnedMemory, IsUnchangedAfterAFailedMove) {
  const App app = start_pinned(hosts_, Host::kA, kPinned, 20);
  for (const auto& [host, fault] :
       {std::pair(Host::kA, "source.dumped error"), std::pair(Host::kB, "destination.imaged error"),
        std::pair(Host::kB, "destination.restored error")}) {
    ASSERT_TRUE(app.wait_for_lines(app.lines().size() + kFewLines)) << app.output();
    fail_at(host, fault, app.pid());
  }
  ASSERT_TRUE(app.wait_for_lines(app.lines().size() + kFewLines)) << app.output();
  const MigrateOutcome moved = hosts_.migrate(Host::kA, app.pid());
  ASSERT_TRUE(moved.migrated()) << moved.err;
  ASSERT_TRUE(app.wait_for_lines(app.lines().size() + kFewLines)) << app.output();
  ASSERT_EQ(::kill(moved.pid, SIGTERM), 0);
  expect_as_undisturbed(app);
}

TEST_F(PinnedMemory, IsCheckpointedAndRestored) {
  App app = start_pinned(hosts_, Host::kA, kPinned, 20);
  ASSERT_TRUE(app.wait_for_lines(kFewLines)) << app.output();
  const CommandResult taken = checkpoint(app.pid(), {"--stop"});
  ASSERT_EQ(taken.exit_code, 0) << taken.err;
  end(app);
  const CommandResult restored = restore(Host::kB);
  ASSERT_EQ(restored.exit_code, 0) << restored.err;
  const pid_t pid = static_cast<pid_t>(number(last_line(restored), "pid"));
  EXPECT_TRUE(has_memory_of_the_driver(pid));
  ASSERT_TRUE(app.wait_for_lines(app.lines().size() + kFewLines)) << app.output();
  // And moves from there.
  const MigrateOutcome moved = hosts_.migrate(Host::kB, pid);
  ASSERT_TRUE(moved.migrated()) << moved.err;
  ASSERT_TRUE(app.wait_for_lines(app.lines().size() + kFewLines)) << app.output();
  ASSERT_EQ(::kill(moved.pid, SIGTERM), 0);
  expect_as_undisturbed(app);
}

TEST_F(PinnedMemory, MovesWhileItsJobIsSuspended) {
  const App app = start_pinned(hosts_, Host::kA, kPinned, 20);
  ASSERT_TRUE(app.wait_for_lines(kFewLines)) << app.output();
  const CommandResult suspended = hosts_.order(Host::kA, {"suspend", std::to_string(app.pid())});
  ASSERT_EQ(suspended.exit_code, 0) << suspended.out << suspended.err;
  const MigrateReport moved = hosts_.migrate_for_report(Host::kA, app.pid(), {});
  ASSERT_EQ(moved.exit_code, 0) << moved.err;
  EXPECT_GE(moved.report.memory_image_bytes(), kPinned);
  const std::string pid = std::to_string(moved.report.destination_pid());
  const CommandResult resumed = hosts_.order(Host::kB, {"resume", pid});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.out << resumed.err;
  ASSERT_TRUE(app.wait_for_lines(app.lines().size() + kFewLines)) << app.output();
  ASSERT_EQ(::kill(moved.report.destination_pid(), SIGTERM), 0);
  expect_as_undisturbed(app);
}

}  // namespace
}  // namespace gcr::e2e
