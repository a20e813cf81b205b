// A job is suspended and resumed: it continues undisturbed after every failure, and nothing
// is left over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "migrate-agent/linux/cgroups/group.h"
#include "src/base/units.h"
#include "tests/apps/ring.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"
#include "tests/support/wait_until.h"

namespace gcr::e2e {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr std::uint64_t kCounterVram = 32 * kMiB;

/// One counter on host A, unless a test starts something else.
class SuspendTest : public testing::Test {
 protected:
  void start(const Words& options = {}) {
    hosts_.emplace(options);
    empty_ = hosts_->use(Host::kA);
    counter_.emplace(start_counter(*hosts_, Host::kA, kCounterVram));
    client_.emplace(hosts_->variable("NS", Host::kA));
    ASSERT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst);
    running_ = hosts_->use(Host::kA);
  }

  CommandResult order(const Words& words) const { return hosts_->order(Host::kA, words); }
  CommandResult suspend() const { return order({"suspend", pid()}); }
  CommandResult resume(const Words& options = {}) const {
    Words words{"resume", pid()};
    words.insert(words.end(), options.begin(), options.end());
    return order(words);
  }
  std::string pid() const { return std::to_string(counter_->pid()); }

  void arm(const std::string& point) const {
    std::ofstream(hosts_->directory(Host::kA) + "/faults") << point << "\n";
  }
  bool was_reached() const {
    return std::filesystem::exists(hosts_->directory(Host::kA) + "/faults.hit");
  }

  /// Of the only migration that is not finished; empty if there is none.
  std::string state() const {
    const auto answer = hosts_->ask(Host::kA, "list");
    const auto& migrations = answer.fields().at("migrations").list_value().values();
    if (migrations.empty()) return "";
    return migrations[0].struct_value().fields().at("state").string_value();
  }

  /// As `gcr-migrate host` prints it; empty if it is in none.
  std::string migration_of_process() const {
    const auto answer = hosts_->ask(Host::kA, "host");
    const auto& processes = answer.fields().at("processes").list_value().values();
    if (processes.size() != 1) return "no process";
    return processes[0].struct_value().fields().at("migration_id").string_value();
  }

  /// Recovery may still have to complete it.
  bool reaches(const std::string& wanted) const {
    return test::wait_until([&] { return state() == wanted; });
  }

  bool is_frozen() const {
    const auto answer = hosts_->ask(Host::kA, "list");
    const auto& migration = answer.fields().at("migrations").list_value().values(0).struct_value();
    const cgroups::Group group(
        cgroups::hierarchies(),
        cgroups::kGroupPrefix + migration.fields().at("migration_id").string_value() + "-source");
    return group.is_frozen().value_or(false);
  }

  void expect_suspended() const {
    EXPECT_TRUE(reaches("suspended"));
    EXPECT_TRUE(is_frozen());
    EXPECT_EQ(hosts_->use(Host::kA).vram_bytes, empty_.vram_bytes);
  }

  /// As before the suspend, and nothing is left of it.
  void expect_running() {
    EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kA), ++answered_);
    EXPECT_TRUE(counter_is_intact(*client_, *hosts_, Host::kA));
    EXPECT_TRUE(reaches(""));
    EXPECT_EQ(hosts_->use_coming_to(Host::kA, running_), running_);
  }

  std::optional<TwoHosts> hosts_;
  std::optional<App> counter_;
  std::optional<UdpClient> client_;
  HostUse empty_;
  HostUse running_;
  int answered_ = kCounterFirst;
};

TEST_F(SuspendTest, SuspendedJobUsesNoVram) {
  ASSERT_NO_FATAL_FAILURE(start());
  const CommandResult suspended = suspend();
  ASSERT_EQ(suspended.exit_code, 0) << suspended.out << suspended.err;
  EXPECT_THAT(suspended.out, HasSubstr("suspended pid=" + pid() + " vram_bytes="));
  expect_suspended();
  EXPECT_THAT(migration_of_process(), testing::Not(testing::AnyOf("", "no process")));
  const CommandResult resumed = resume();
  ASSERT_EQ(resumed.exit_code, 0) << resumed.out << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("resumed pid=" + pid() + " vram_bytes="));
  expect_running();
  EXPECT_EQ(migration_of_process(), "");
}

TEST_F(SuspendTest, JobCanBeSuspendedRepeatedly) {
  ASSERT_NO_FATAL_FAILURE(start());
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(suspend().exit_code, 0);
    ASSERT_EQ(resume().exit_code, 0);
    expect_running();
  }
}

TEST_F(SuspendTest, ResumedJobCanMigrate) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(suspend().exit_code, 0);
  ASSERT_EQ(resume().exit_code, 0);
  ASSERT_TRUE(migrated(hosts_->migrate(Host::kA, counter_->pid())));
  EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kB), kCounterFirst + 1);
}

TEST(Suspension, ProgramPrintsTheSameOutput) {
  TwoHosts hosts;
  const App app = start_stencil(hosts, Host::kA, 16 * kMiB, 20);
  ASSERT_TRUE(app.wait_for_lines(3));
  const std::string pid = std::to_string(app.pid());
  ASSERT_EQ(hosts.order(Host::kA, {"suspend", pid}).exit_code, 0);
  const std::size_t lines = app.lines().size();
  ASSERT_EQ(hosts.order(Host::kA, {"resume", pid}).exit_code, 0);
  ASSERT_TRUE(app.wait_for_lines(lines + 3));
  ASSERT_EQ(::kill(app.pid(), SIGTERM), 0);
  const App undisturbed = start_stencil(hosts, Host::kA, 16 * kMiB, 20);
  EXPECT_TRUE(printed_what_prints(app, undisturbed));
}

TEST_F(SuspendTest, OrdinaryMemoryIsEnough) {
  ASSERT_NO_FATAL_FAILURE(start({"--hugepages", "never"}));
  ASSERT_EQ(suspend().exit_code, 0);
  expect_suspended();
  ASSERT_EQ(resume().exit_code, 0);
  expect_running();
}

TEST_F(SuspendTest, ResumeMayUseAnotherGpu) {
  ASSERT_NO_FATAL_FAILURE(start({"--gpus", "2"}));
  ASSERT_EQ(suspend().exit_code, 0);
  const CommandResult resumed =
      resume({"--device-map", gpu_of(*hosts_, Host::kA, 0) + "=" + gpu_of(*hosts_, Host::kA, 1)});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.out << resumed.err;
  EXPECT_GE(hosts_->vram_used(Host::kA, 1), kCounterVram);
  EXPECT_LT(hosts_->vram_used(Host::kA, 0), kCounterVram);
  expect_running();
}

TEST_F(SuspendTest, StaysSuspendedUntilVramIsFree) {
  ASSERT_NO_FATAL_FAILURE(start({"--vram", "1G"}));
  ASSERT_EQ(suspend().exit_code, 0);
  {
    const App other = start_stencil(*hosts_, Host::kA, 400 * kMiB, 20);
    const CommandResult refused = resume();
    EXPECT_EQ(refused.exit_code, kRefusedExit);
    EXPECT_THAT(refused.err, HasSubstr("of VRAM free; "));
    EXPECT_EQ(state(), "suspended");
  }
  expect_suspended();
  ASSERT_EQ(resume().exit_code, 0);
  expect_running();
}

TEST_F(SuspendTest, ResumesOnAnotherGpuIfItsOwnIsFull) {
  ASSERT_NO_FATAL_FAILURE(start({"--vram", "1G", "--gpus", "2"}));
  ASSERT_EQ(suspend().exit_code, 0);
  const App other = start_stencil(*hosts_, Host::kA, 400 * kMiB, 20);
  const CommandResult resumed = resume();
  ASSERT_EQ(resumed.exit_code, 0) << resumed.out << resumed.err;
  EXPECT_GE(hosts_->vram_used(Host::kA, 1), kCounterVram);
  EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst + 1);
  EXPECT_TRUE(counter_is_intact(*client_, *hosts_, Host::kA));
}

TEST_F(SuspendTest, SuspendedJobCannotBeSuspendedAgain) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(suspend().exit_code, 0);
  const std::string reason = "process " + pid() + " is suspended (migration ";
  const CommandResult again = suspend();
  EXPECT_EQ(again.exit_code, kRefusedExit);
  EXPECT_THAT(again.err, HasSubstr(reason));
  EXPECT_THAT(again.err, HasSubstr("resume it first"));
  ASSERT_EQ(resume().exit_code, 0);
  EXPECT_THAT(resume().err, HasSubstr("process " + pid() + " is not suspended"));
  expect_running();
}

TEST_F(SuspendTest, StaysSuspendedWithoutAnAgent) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(suspend().exit_code, 0);
  hosts_->wait_until_idle(Host::kA);
  ASSERT_EQ(::kill(hosts_->agent_pid(Host::kA), SIGKILL), 0);
  hosts_->stop_agent(Host::kA);
  ASSERT_EQ(::kill(counter_->pid(), SIGCONT), 0);
  hosts_->start_agent(Host::kA);
  expect_suspended();
  EXPECT_THAT(suspend().err, HasSubstr("is suspended (migration "));
  ASSERT_EQ(resume().exit_code, 0);
  expect_running();
}

TEST_F(SuspendTest, KilledSuspendedJobLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(suspend().exit_code, 0);
  expect_suspended();
  ASSERT_EQ(::kill(counter_->pid(), SIGKILL), 0);
  ASSERT_TRUE(counter_->program().wait(kPatience));
  EXPECT_TRUE(reaches(""));
  EXPECT_EQ(hosts_->use_coming_to(Host::kA, empty_), empty_);
}

TEST_F(SuspendTest, LossOfTheKeeperIsReported) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(suspend().exit_code, 0);
  hosts_->wait_until_idle(Host::kA);
  hosts_->kill_keepers(Host::kA);
  const CommandResult refused = resume();
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("the VRAM of process " + pid() + " is lost"));
  EXPECT_EQ(state(), "suspended");
}

TEST_F(SuspendTest, TwoJobsTakeTurns) {
  // One of them fits at a time: each needs 640 MiB more, for its context.
  ASSERT_NO_FATAL_FAILURE(start({"--vram", "1G"}));
  ASSERT_EQ(suspend().exit_code, 0);
  const App other = start_stencil(*hosts_, Host::kA, 368 * kMiB, 20);
  EXPECT_THAT(resume().err, HasSubstr("of VRAM free; "));
  const std::string second = std::to_string(other.pid());
  const CommandResult swapped = order({"swap", second, pid()});
  ASSERT_EQ(swapped.exit_code, 0) << swapped.out << swapped.err;
  EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst + 1);
  const std::size_t lines = other.lines().size();
  const CommandResult back = order({"swap", pid(), second});
  ASSERT_EQ(back.exit_code, 0) << back.err;
  EXPECT_TRUE(other.wait_for_lines(lines + 3));
  ASSERT_EQ(order({"swap", second, pid()}).exit_code, 0);
  EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst + 2);
  EXPECT_TRUE(counter_is_intact(*client_, *hosts_, Host::kA));
}

TEST_F(SuspendTest, SwapWithARunningJobChangesNothing) {
  ASSERT_NO_FATAL_FAILURE(start());
  const App other = start_sleeper(*hosts_, Host::kA);
  running_ = hosts_->use(Host::kA);
  const CommandResult swapped = order({"swap", pid(), std::to_string(other.pid())});
  EXPECT_EQ(swapped.exit_code, kRefusedExit) << swapped.out << swapped.err;
  EXPECT_THAT(swapped.err, HasSubstr("is not suspended"));
  expect_running();
}

TEST(Suspension, RanksThatShareVramAreSuspendedTogether) {
  TwoHosts hosts;
  const HostUse before = hosts.use(Host::kA);
  const App app =
      hosts.start_app(Host::kA, {hosts.program_path("ring"), "--ranks", "2", "--per-line", "6"});
  ASSERT_TRUE(app.wait_for_lines(3)) << app.output();
  const std::string pid = std::to_string(app.pid());
  for (int i = 0; i < 3; ++i) {
    const CommandResult suspended = hosts.order(Host::kA, {"suspend", pid});
    ASSERT_EQ(suspended.exit_code, 0) << suspended.out << suspended.err;
    EXPECT_EQ(hosts.use(Host::kA).vram_bytes, before.vram_bytes);
    const CommandResult resumed = hosts.order(Host::kA, {"resume", pid});
    ASSERT_EQ(resumed.exit_code, 0) << resumed.out << resumed.err;
    ASSERT_TRUE(app.wait_for_lines(app.lines().size() + 3)) << app.output();
  }
  apps::RingLines expected(2, 6);
  for (const std::string& line : app.lines()) ASSERT_EQ(line, expected.next());
}

/// The state after a worker has died, or a step has failed, at a point.
struct Trouble {
  const char* point;
  bool suspended;
};

void PrintTo(const Trouble& trouble, std::ostream* out) { *out << trouble.point; }

std::string name_of(const testing::TestParamInfo<Trouble>& info) {
  std::string name = info.param.point;
  std::erase(name, '.');
  return name;
}

class SuspendFault : public SuspendTest, public testing::WithParamInterface<Trouble> {
 protected:
  void expect_progress() {
    if (GetParam().suspended) {
      expect_suspended();
      const CommandResult resumed = resume();
      ASSERT_EQ(resumed.exit_code, 0) << resumed.out << resumed.err;
    }
    expect_running();
  }
};

TEST_P(SuspendFault, DeadWorkerLeavesTheJobRunningOrSuspended) {
  ASSERT_NO_FATAL_FAILURE(start({"--fault-points", "true"}));
  arm(std::string(GetParam().point) + " kill");
  EXPECT_EQ(suspend().exit_code == 0, GetParam().suspended);  // from the agent's journal
  EXPECT_TRUE(was_reached());
  expect_progress();
}

TEST_P(SuspendFault, FailedStepLeavesTheJobRunningOrSuspended) {
  ASSERT_NO_FATAL_FAILURE(start({"--fault-points", "true"}));
  arm(std::string(GetParam().point) + " error");
  EXPECT_EQ(suspend().exit_code == 0, GetParam().suspended);
  EXPECT_TRUE(was_reached());
  expect_progress();
}

INSTANTIATE_TEST_SUITE_P(
    At, SuspendFault,
    testing::Values(Trouble{"source.began", false}, Trouble{"source.prepared", false},
                    Trouble{"source.closing", false}, Trouble{"source.gated", false},
                    Trouble{"source.detached", false}, Trouble{"source.locked", false},
                    Trouble{"source.checkpointed", false}, Trouble{"source.suspend.copied", false},
                    Trouble{"source.suspend.kept", false}, Trouble{"source.suspend.decided", true},
                    Trouble{"source.suspend.released", true}),
    name_of);

class ResumeFault : public SuspendFault {};

TEST_P(ResumeFault, DeadWorkerLeavesTheJobRunningOrSuspended) {
  ASSERT_NO_FATAL_FAILURE(start({"--fault-points", "true"}));
  ASSERT_EQ(suspend().exit_code, 0);
  arm(std::string(GetParam().point) + " kill");
  const CommandResult resumed = resume();
  EXPECT_EQ(resumed.exit_code != 0, GetParam().suspended) << resumed.err;
  EXPECT_TRUE(was_reached()) << resumed.err;
  expect_progress();
}

TEST_P(ResumeFault, FailedStepLeavesTheJobRunningOrSuspended) {
  ASSERT_NO_FATAL_FAILURE(start({"--fault-points", "true"}));
  ASSERT_EQ(suspend().exit_code, 0);
  arm(std::string(GetParam().point) + " error");
  const CommandResult resumed = resume();
  EXPECT_EQ(resumed.exit_code != 0, GetParam().suspended) << resumed.err;
  EXPECT_TRUE(was_reached()) << resumed.err;
  expect_progress();
}

INSTANTIATE_TEST_SUITE_P(At, ResumeFault,
                         testing::Values(Trouble{"source.resume.begun", true},
                                         Trouble{"source.resume.loaded", true},
                                         Trouble{"source.resume.kept", true},
                                         Trouble{"source.resume.decided", false},
                                         Trouble{"source.resume.running", false}),
                         name_of);

TEST_F(SuspendTest, RecoveryFinishesAResumeToAnotherGpu) {
  ASSERT_NO_FATAL_FAILURE(start({"--fault-points", "true", "--gpus", "2"}));
  ASSERT_EQ(suspend().exit_code, 0);
  arm("source.resume.decided kill");
  // The agent's journal tells the command what recovery did.
  EXPECT_EQ(
      resume({"--device-map", gpu_of(*hosts_, Host::kA, 0) + "=" + gpu_of(*hosts_, Host::kA, 1)})
          .exit_code,
      0);
  EXPECT_TRUE(was_reached());
  expect_running();
  EXPECT_GE(hosts_->vram_used(Host::kA, 1), kCounterVram);
}

TEST(SuspendOnHip, IsRefused) {
  TwoHosts hosts({"--gpu", "soft-hip"});
  const App counter = start_counter(hosts, Host::kA, kCounterVram);
  const CommandResult refused = hosts.order(Host::kA, {"suspend", std::to_string(counter.pid())});
  EXPECT_EQ(refused.exit_code, kRefusedExit);
  EXPECT_THAT(refused.err, HasSubstr("AMD GPUs"));
}

}  // namespace
}  // namespace gcr::e2e
