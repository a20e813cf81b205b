// A suspended job is checkpointed and moved without its GPU. Whatever fails on the way, it is
// suspended as before, or has moved.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "migrate-agent/procfs/procfs.h"
#include "src/base/units.h"
#include "tests/apps/ring.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr std::uint64_t kSuspendedVram = 64 * kMiB;

class SuspendedTest : public testing::Test {
 protected:
  /// A counter on host A, suspended.
  void start(const Words& options = {}) {
    hosts_.emplace(options);
    empty_ = hosts_->use(Host::kA);
    counter_.emplace(start_counter(*hosts_, Host::kA, kSuspendedVram));
    client_.emplace(hosts_->variable("NS", Host::kA));
    ASSERT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst);
    running_ = hosts_->use(Host::kA);
    const CommandResult suspended = order({"suspend", pid()});
    ASSERT_EQ(suspended.exit_code, 0) << suspended.out << suspended.err;
    suspended_ = hosts_->use(Host::kA);
    ASSERT_EQ(suspended_.vram_bytes, empty_.vram_bytes);
  }

  std::string pid() const { return std::to_string(counter_->pid()); }
  std::string store() const { return hosts_->directory() + "/checkpoints"; }
  CommandResult order(Words words, Host host = Host::kA) const {
    return hosts_->order(host, words);
  }
  CommandResult checkpoint(const Words& options = {}) const {
    Words words{"checkpoint", pid(), store()};
    words.insert(words.end(), options.begin(), options.end());
    return order(words);
  }
  MigrateOutcome migrate() const { return hosts_->migrate(Host::kA, counter_->pid()); }

  void arm(const std::string& fault, Host host = Host::kA) const {
    std::ofstream(hosts_->directory(host) + "/faults") << fault << "\n";
  }
  bool was_reached(Host host = Host::kA) const {
    return std::filesystem::exists(hosts_->directory(host) + "/faults.hit");
  }

  /// Of all migrations that are not finished on a host.
  Words states(Host host = Host::kA) const {
    Words states;
    const auto answer = hosts_->ask(host, "list");
    for (const auto& migration : answer.fields().at("migrations").list_value().values()) {
      states.push_back(migration.struct_value().fields().at("state").string_value());
    }
    return states;
  }

  /// Recovery may still have to lead there.
  bool come_to(const Words& wanted, Host host = Host::kA) const {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (states(host) != wanted) {
      if (std::chrono::steady_clock::now() > end) return false;
    }
    return true;
  }

  /// As before, and nothing is left of what was tried.
  void expect_suspended() const {
    EXPECT_TRUE(come_to({"suspended"}));
    EXPECT_TRUE(come_to({}, Host::kB));
    EXPECT_EQ(hosts_->use(Host::kA), suspended_);
  }

  void expect_resumable() {
    expect_suspended();
    const CommandResult resumed = order({"resume", pid()});
    ASSERT_EQ(resumed.exit_code, 0) << resumed.out << resumed.err;
    expect_answers(Host::kA);
    EXPECT_TRUE(come_to({}));
    EXPECT_EQ(hosts_->use(Host::kA), running_);
  }

  void expect_answers(Host host) const {
    EXPECT_EQ(ask_counter(*client_, *hosts_, host), kCounterFirst + 1);
    EXPECT_TRUE(counter_is_intact(*client_, *hosts_, host));
  }

  void expect_gone_from_a() {
    ASSERT_TRUE(counter_->program().wait(kPatience));
    EXPECT_TRUE(come_to({}));
    EXPECT_EQ(hosts_->use(Host::kA), empty_);
  }

  std::optional<TwoHosts> hosts_;
  std::optional<App> counter_;
  std::optional<UdpClient> client_;
  HostUse empty_;
  HostUse running_;
  HostUse suspended_;
};

TEST_F(SuspendedTest, ACheckpointLeavesItSuspendedAndItGoesOnAsIfNothingHadBeen) {
  ASSERT_NO_FATAL_FAILURE(start());
  const CommandResult taken = checkpoint();
  ASSERT_EQ(taken.exit_code, 0) << taken.out << taken.err;
  EXPECT_THAT(taken.out, HasSubstr("checkpointed name="));
  expect_resumable();
}

TEST_F(SuspendedTest, ItsCheckpointRunsOnTheOtherHost) {
  ASSERT_NO_FATAL_FAILURE(start());
  const CommandResult taken = checkpoint({"--stop"});
  ASSERT_EQ(taken.exit_code, 0) << taken.out << taken.err;
  expect_gone_from_a();
  const CommandResult restored = order({"restore", store()}, Host::kB);
  ASSERT_EQ(restored.exit_code, 0) << restored.out << restored.err;
  expect_answers(Host::kB);
}

TEST_F(SuspendedTest, ItRunsWhereItIsMovedTo) {
  ASSERT_NO_FATAL_FAILURE(start());
  const MigrateOutcome moved = migrate();
  ASSERT_TRUE(migrated(moved)) << moved.err;
  EXPECT_GE(moved.vram_bytes, kSuspendedVram);
  expect_answers(Host::kB);
  expect_gone_from_a();
}

TEST_F(SuspendedTest, PreflightFindsItMovable) {
  ASSERT_NO_FATAL_FAILURE(start());
  const CommandResult found = order({"preflight", hosts_->address(Host::kB), pid()});
  EXPECT_EQ(found.exit_code, 0) << found.out << found.err;
  expect_suspended();
}

TEST_F(SuspendedTest, WhatTheTargetRefusesStaysSuspended) {
  ASSERT_NO_FATAL_FAILURE(start({"--vram", "1G"}));
  const App other = start_stencil(*hosts_, Host::kB, 768 * kMiB, 100);
  const MigrateOutcome refused = hosts_->migrate(Host::kA, counter_->pid());
  EXPECT_EQ(refused.exit_code, kRefusedExit) << refused.out;
  EXPECT_THAT(refused.err, HasSubstr("the job is suspended, as before"));
}

TEST_F(SuspendedTest, WithoutItsKeeperItCannotBeMovedAndThatIsSaid) {
  ASSERT_NO_FATAL_FAILURE(start());
  hosts_->wait_until_idle(Host::kA);
  for (const pid_t process : procfs::processes()) {
    const auto name = procfs::status_field(std::to_string(process), "Name");
    const bool ours =
        procfs::namespace_link(process, "net") == procfs::namespace_link(counter_->pid(), "net");
    if (name != "gcr-keeper" || !ours) continue;
    ASSERT_EQ(::kill(process, SIGKILL), 0);
  }
  for (const std::string& said : {migrate().err, checkpoint().err}) {
    EXPECT_THAT(said, HasSubstr("the VRAM of process " + pid() + " is lost"));
  }
  EXPECT_TRUE(come_to({"suspended"}));
}

TEST(SuspendedProgram, PrintsWhatAnUndisturbedRunPrints) {
  TwoHosts hosts;
  const App undisturbed = start_stencil(hosts, Host::kB, 64 * kMiB, 100);
  const App app = start_stencil(hosts, Host::kA, 64 * kMiB, 100);
  ASSERT_TRUE(app.wait_for_lines(3));
  const std::string pid = std::to_string(app.pid());
  ASSERT_EQ(hosts.order(Host::kA, {"suspend", pid}).exit_code, 0);
  for (int i = 0; i < 2; ++i) {
    const CommandResult taken =
        hosts.order(Host::kA, {"checkpoint", pid, hosts.directory() + "/checkpoints"});
    ASSERT_EQ(taken.exit_code, 0) << taken.err;
  }
  const std::size_t lines = app.lines().size();
  ASSERT_EQ(hosts.order(Host::kA, {"resume", pid}).exit_code, 0);
  ASSERT_TRUE(app.wait_for_lines(lines + 3));
  ASSERT_EQ(hosts.order(Host::kA, {"suspend", pid}).exit_code, 0);
  const std::size_t before = app.lines().size();
  ASSERT_TRUE(migrated(hosts.migrate(Host::kA, app.pid())));
  ASSERT_TRUE(app.wait_for_lines(before + 3));
  EXPECT_TRUE(printed_what_prints(app, undisturbed));
}

TEST(SuspendedRing, RanksThatShareVramMoveTogether) {
  TwoHosts hosts;
  const App app =
      hosts.start_app(Host::kA, {hosts.program_path("ring"), "--ranks", "2", "--per-line", "6"});
  ASSERT_TRUE(app.wait_for_lines(3)) << app.output();
  const std::string pid = std::to_string(app.pid());
  const CommandResult suspended = hosts.order(Host::kA, {"suspend", pid});
  ASSERT_EQ(suspended.exit_code, 0) << suspended.err;
  const std::size_t lines = app.lines().size();
  ASSERT_TRUE(migrated(hosts.migrate(Host::kA, app.pid())));
  ASSERT_TRUE(app.wait_for_lines(lines + 3)) << app.output();
  apps::RingLines expected(2, 6);
  for (const std::string& line : app.lines()) ASSERT_EQ(line, expected.next());
}

/// What is true after a worker at the source has died, or a step has failed, at a point.
struct MoveTrouble {
  const char* point;
  bool moved;
};

void PrintTo(const MoveTrouble& trouble, std::ostream* out) { *out << trouble.point; }

std::string point_of(const testing::TestParamInfo<MoveTrouble>& info) {
  std::string name = info.param.point;
  std::erase_if(name, [](char letter) { return letter == '.' || letter == '-'; });
  return name;
}

class SuspendedMoveFault : public SuspendedTest, public testing::WithParamInterface<MoveTrouble> {
 protected:
  void expect_one_copy() {
    EXPECT_TRUE(was_reached());
    if (!GetParam().moved) return expect_resumable();
    expect_answers(Host::kB);
    expect_gone_from_a();
  }
};

TEST_P(SuspendedMoveFault, AWorkerThatDiesLeavesOneCopy) {
  ASSERT_NO_FATAL_FAILURE(start({"--fault-points", "true"}));
  arm(std::string(GetParam().point) + " kill");
  EXPECT_NE(migrate().exit_code, 0);
  expect_one_copy();
}

TEST_P(SuspendedMoveFault, AStepThatFailsLeavesOneCopy) {
  ASSERT_NO_FATAL_FAILURE(start({"--fault-points", "true"}));
  arm(std::string(GetParam().point) + " error");
  EXPECT_EQ(migrate().exit_code == 0, GetParam().moved);
  expect_one_copy();
}

INSTANTIATE_TEST_SUITE_P(
    At, SuspendedMoveFault,
    testing::Values(MoveTrouble{"source.preflighted", false}, MoveTrouble{"source.began", false},
                    MoveTrouble{"source.prepared", false}, MoveTrouble{"source.dumped", false},
                    MoveTrouble{"source.flushed", false}, MoveTrouble{"source.awaiting", false},
                    MoveTrouble{"source.voted", false}, MoveTrouble{"source.committed", true},
                    MoveTrouble{"source.confirmed", true}, MoveTrouble{"source.killed", true},
                    MoveTrouble{"source.suspension.ended", true}),
    point_of);

class SuspendedCheckpointFault : public SuspendedTest,
                                 public testing::WithParamInterface<const char*> {};

TEST_P(SuspendedCheckpointFault, AWorkerThatDiesLeavesItSuspended) {
  ASSERT_NO_FATAL_FAILURE(start({"--fault-points", "true"}));
  arm(std::string(GetParam()) + " kill");
  EXPECT_NE(checkpoint().exit_code, 0);
  EXPECT_TRUE(was_reached());
  expect_resumable();
}

INSTANTIATE_TEST_SUITE_P(At, SuspendedCheckpointFault,
                         testing::Values("source.began", "source.dumped", "source.flushed",
                                         "source.recovery.resumed", "source.checkpoint.stored",
                                         "source.checkpoint.sealed"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '.');
                           return name;
                         });

TEST_F(SuspendedTest, ADestinationThatDiesLeavesItSuspended) {
  ASSERT_NO_FATAL_FAILURE(start({"--fault-points", "true"}));
  arm("destination.attached kill", Host::kB);
  EXPECT_NE(migrate().exit_code, 0);
  EXPECT_TRUE(was_reached(Host::kB));
  expect_resumable();
}

/// Holds the worker at a point until go_on().
class HeldTest : public SuspendedTest {
 protected:
  void migrate_until(const std::string& point) {
    arm(point + " run until [ -e " + flag() + " ]; do sleep 0.01; done");
    moved_ = std::async(std::launch::async, [this] { return migrate(); });
    while (!was_reached()) ASSERT_TRUE(still_moves());
  }
  bool still_moves() const {
    return moved_.wait_for(std::chrono::milliseconds(10)) == std::future_status::timeout;
  }
  void go_on() const { std::ofstream(flag()) << "go on\n"; }
  std::string flag() const { return hosts_->directory() + "/go-on"; }

  void expect_no_resume() const {
    const CommandResult refused = order({"resume", pid()});
    EXPECT_EQ(refused.exit_code, kRefusedExit) << refused.out;
    EXPECT_THAT(refused.err, HasSubstr("is being migrated already, by migration"));
  }

  std::future<MigrateOutcome> moved_;
};

TEST_F(HeldTest, WhileItMovesNobodyResumesIt) {
  ASSERT_NO_FATAL_FAILURE(start({"--fault-points", "true"}));
  ASSERT_NO_FATAL_FAILURE(migrate_until("source.flushed"));
  expect_no_resume();
  go_on();
  EXPECT_TRUE(migrated(moved_.get()));
  expect_answers(Host::kB);
  expect_gone_from_a();
}

TEST_F(HeldTest, OnceItIsCommittedNobodyResumesItThoughTheDestinationIsAway) {
  ASSERT_NO_FATAL_FAILURE(start({"--fault-points", "true"}));
  ASSERT_NO_FATAL_FAILURE(migrate_until("source.committed"));
  hosts_->stop_agent(Host::kB);
  for (const pid_t worker : hosts_->workers(Host::kA)) ASSERT_EQ(::kill(worker, SIGKILL), 0);
  EXPECT_NE(moved_.get().exit_code, 0);
  EXPECT_THAT(states(), testing::UnorderedElementsAre("committed", "suspended"));
  expect_no_resume();
  hosts_->start_agent(Host::kB);
  expect_answers(Host::kB);
  expect_gone_from_a();
  go_on();
}

}  // namespace
}  // namespace gcr::e2e
