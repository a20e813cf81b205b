// Jobs whose members end, start, or execute other programs during a migration: between preflight
// and the switchover, where most of its time passes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

using testing::HasSubstr;

struct Change {
  const char* name;
  const char* does;  ///< in the root's shell, where $gpu and $other are members
  int exit_code = 0;
  const char* says = "";  ///< on standard error, if it does not move
  bool counter_goes_on = true;
  int processes = 3;  ///< minimum number of moved processes
};

void PrintTo(const Change& change, std::ostream* out) { *out << change.name; }

class ChangingJob : public testing::TestWithParam<Change> {
 protected:
  /// A counter, two members without a GPU, one of which waits to use it, and a root that waits for
  /// its cue, and starts processes.
  App start_job() {
    const std::string second = joined(counter_command(hosts_, 0, kCounterPort + 1));
    const std::string script = "cue=" + cue_ + "\n" + joined(counter_command(hosts_, 32 * kMiB)) +
                               " & gpu=$!\nsleep 1000 & other=$!\n"
                               "wait_for() { while [ ! -e $cue.$1 ]; do sleep 0.02; done; }\n"
                               "use_gpu() { exec " +
                               second + "; }\n(wait_for gpu; use_gpu) &\nwait_for change\n" +
                               GetParam().does + "\necho done\nwhile :; do sleep 0.05; done";
    App job = hosts_.start_app(Host::kA, {"/bin/sh", "-c", script});
    EXPECT_TRUE(job.wait_for_lines(1)) << job.output();
    return job;
  }

  /// The change is done when this returns, unless the root has executed another program.
  void give_cue(const App& job) {
    std::ofstream(cue_ + ".change").put('1');
    if (std::string(GetParam().does).starts_with("exec")) return;
    const auto is_done = [](const std::string& text) { return text.find("done\n") != text.npos; };
    ASSERT_TRUE(wait_for_content(job.output_path(), is_done, kPatience)) << job.output();
  }

  TwoHosts hosts_;
  const std::string cue_ = hosts_.directory() + "/cue";
  UdpClient client_{hosts_.variable("NS", Host::kA)};
};

TEST_P(ChangingJob, MovesCompletelyOrRunsOn) {
  const Change& change = GetParam();
  const App job = start_job();
  BackgroundCommand migration(
      hosts_.migrate_command(Host::kA, Host::kB, job.pid(), {"--pause-before-switchover"}));
  ASSERT_TRUE(migration.wait_for_output(
      [](const std::string& output) { return output.find("paused: ") != output.npos; }, kPatience))
      << migration.err_so_far();
  ASSERT_NO_FATAL_FAILURE(give_cue(job));
  const std::string output = migration.out_so_far();
  const std::string id = output.substr(output.find("migration ") + 10, 36);
  const CommandResult told = hosts_.order(Host::kA, {"continue", id});
  EXPECT_EQ(told.exit_code, 0) << told.err;
  const MigrateOutcome outcome = TwoHosts::parse_outcome(migration.finish(kPatience));
  EXPECT_EQ(outcome.exit_code, change.exit_code) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(change.says));
  const bool moved = outcome.migrated();
  if (moved) {
    EXPECT_GE(outcome.processes, change.processes);
  } else {
    EXPECT_TRUE(procfs::read_stat(job.pid())) << "the root has ended";
  }
  if (change.counter_goes_on) {
    EXPECT_EQ(ask_counter(client_, hosts_, moved ? Host::kB : Host::kA), kCounterFirst);
    EXPECT_TRUE(counter_is_intact(client_, hosts_, moved ? Host::kB : Host::kA));
  }
  const HostUse empty = hosts_.use(moved ? Host::kA : Host::kB);
  EXPECT_EQ(empty.vram_bytes, 0u);
  EXPECT_EQ(empty.workers, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    While, ChangingJob,
    testing::Values(
        Change{.name = "TheRootBecomesAnotherProgram", .does = "exec sleep 1000"},
        Change{.name = "AMemberEnds", .does = "kill $other; wait $other"},
        Change{.name = "AMemberLeavesTheSession", .does = "setsid sleep 1000 &", .processes = 4},
        Change{.name = "AMemberWithAGpuEnds",
               .does = "kill -KILL $gpu; wait $gpu",
               .exit_code = 1,
               .says = "ended",
               .counter_goes_on = false},
        Change{.name = "AMemberBeginsToUseAGpu",
               .does = ">$cue.gpu; sleep 1",
               .exit_code = 1,
               .says = "began to use a GPU after it was examined: it has /dev/nvidia"},
        Change{.name = "ANewMemberUsesAGpu",
               .does = "(use_gpu) & sleep 1",
               .exit_code = 1,
               .says = "began to use a GPU after it was examined: it has /dev/nvidia"},
        Change{.name = "TheTreeGrows",
               .does = "i=0; while [ $i -lt 250 ]; do sleep 1000 & i=$((i + 1)); done",
               .exit_code = 1,
               .says = "processes by now, at most 200 are supported"}),
    [](const auto& info) { return std::string(info.param.name); });

/// A process that lives for half a second, with a file that cannot be moved, starts after the job
/// was examined.
class TransientMember : public testing::TestWithParam<const char*> {};

TEST_P(TransientMember, IsWaitedFor) {
  TwoHosts hosts({"--fault-points", "true"});
  const std::string cue = hosts.directory() + "/cue";
  const App job = hosts.start_app(
      Host::kA, {"/bin/sh", "-c",
                 joined(counter_command(hosts, 32 * kMiB)) + " & until [ -e " + cue +
                     " ]; do sleep 0.02; done; sh -c 'exec 3</proc/1/status; echo open; sleep 0.5'"
                     "; echo gone; while :; do sleep 0.05; done"});
  ASSERT_TRUE(job.wait_for_lines(1)) << job.output();
  std::ofstream(hosts.directory(Host::kA) + "/faults")
      << GetParam() << " run >" << cue << "; until grep -q open " << job.output_path()
      << "; do sleep 0.02; done\n";
  const MigrateOutcome outcome = hosts.migrate(Host::kA, job.pid());
  ASSERT_TRUE(outcome.migrated()) << outcome.out << outcome.err;
  EXPECT_THAT(job.output(), HasSubstr("open\n"));
  const UdpClient client(hosts.variable("NS", Host::kB));
  EXPECT_EQ(ask_counter(client, hosts, Host::kB), kCounterFirst);
}

INSTANTIATE_TEST_SUITE_P(BornAt, TransientMember,
                         testing::Values("source.copied", "source.checkpointed"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

TEST(JobWithManyGpus, IsRefusedIfTheDestinationHasFewer) {
  TwoHosts hosts({"--gpus", "2", "--only-gpu-b", "1"});
  const App ring = hosts.start_app(
      Host::kA, {hosts.program_path("ring"), "--ranks", "2", "--gpus", "2", "--per-line", "6"});
  ASSERT_TRUE(ring.wait_for_lines(3)) << ring.output();
  const MigrateOutcome outcome = hosts.migrate(Host::kA, ring.pid());
  EXPECT_EQ(outcome.exit_code, kRefusedExit);
  EXPECT_THAT(outcome.err, HasSubstr("gpu-map"));
  EXPECT_THAT(outcome.err, HasSubstr("the destination has no free GPU for GPU-"));
  EXPECT_TRUE(ring.wait_for_lines(ring.lines().size() + 3)) << ring.output();
}

}  // namespace
}  // namespace gcr::e2e
