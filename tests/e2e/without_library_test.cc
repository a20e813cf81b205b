// Programs that use CUDA and were started without the preload library: they move through the driver
// alone on request, and are refused if safety cannot be established.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "migrate-agent/linux/cgroups/group.h"
#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::uint16_t kSecondPort = kCounterPort + 1;
constexpr std::uint64_t kVram = 64 * kMiB;
const std::vector<std::string> kSlow{"--allow-slow"};

/// The form in which a report names a finding.
std::string in_brackets(const std::string& id) { return "[" + id + "]"; }

class WithoutLibrary : public testing::Test {
 protected:
  App start(const std::vector<std::string>& command) {
    App app = hosts_.start_app(Host::kA, command, false);
    EXPECT_TRUE(app.wait_for_lines(1)) << app.output();
    return app;
  }
  /// Of a shell, a counter under the library, one without it, and a member without CUDA.
  App start_job() {
    const std::string script = joined(counter_command(hosts_, kVram)) + " &\nenv -u LD_PRELOAD " +
                               joined(counter_command(hosts_, kVram, kSecondPort)) +
                               " &\nsleep 1000 &\nwait";
    App job = hosts_.start_app(Host::kA, {"/bin/sh", "-c", script});
    EXPECT_TRUE(job.wait_for_lines(2)) << job.output();
    return job;
  }
  App start_bare_counter() { return start(counter_command(hosts_, kVram)); }

  MigrateOutcome migrate(const App& app, const std::vector<std::string>& options = kSlow) {
    return hosts_.migrate(Host::kA, app.pid(), options);
  }

  /// The text output of preflight.
  std::string preflight(const App& app, std::vector<std::string> options = {}) {
    options.insert(options.begin(),
                   {"preflight", hosts_.address(Host::kB), std::to_string(app.pid())});
    return hosts_.order(Host::kA, options).out;
  }

  int ask(Host host = Host::kA) { return ask_counter(client_, hosts_, host); }
  std::string ask_second(Host host = Host::kA) {
    return client_.ask(hosts_.address(host), kSecondPort).value_or("nothing");
  }

  void expect_refusal(const MigrateOutcome& outcome, const std::string& id) {
    EXPECT_EQ(outcome.exit_code, kRefusedExit) << outcome.out << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(in_brackets(id)));
    EXPECT_THAT(outcome.out, Not(HasSubstr("prepare:"))) << "something was changed";
  }

  TwoHosts hosts_{{"--fault-points", "true"}};
  UdpClient client_{hosts_.variable("NS", Host::kA)};
};

TEST_F(WithoutLibrary, RefusalNamesTheNeededOption) {
  const App counter = start_bare_counter();
  ASSERT_EQ(ask(), kCounterFirst);
  const MigrateOutcome refused = migrate(counter, {});
  expect_refusal(refused, "no-library");
  EXPECT_THAT(refused.err, HasSubstr("was not started under `gcr-migrate run`"));
  EXPECT_THAT(preflight(counter),
              AllOf(HasSubstr("blocker no-library at the source"),
                    HasSubstr("while it is stopped, for about "),
                    HasSubstr("Start the program with `gcr-migrate run --`, or accept the "
                              "downtime: --allow-slow.")));
  EXPECT_THAT(preflight(counter, kSlow),
              AllOf(HasSubstr("warning no-library-slow at the source"), HasSubstr("ready")));
  EXPECT_EQ(ask(), kCounterFirst + 1);
}

TEST_F(WithoutLibrary, ImpossibleDowntimeLimitIsRefused) {
  const App counter = start_bare_counter();
  expect_refusal(migrate(counter, {"--allow-slow", "--downtime-limit", "10"}), "downtime-limit");
  EXPECT_EQ(ask(), kCounterFirst);
}

TEST_F(WithoutLibrary, MovesToAndFro) {
  const HostUse empty[] = {hosts_.use(Host::kA), hosts_.use(Host::kB)};
  const App counter = start_bare_counter();
  int expected = kCounterFirst;
  ASSERT_EQ(ask(), expected++);
  const auto check = [&](Host host, const MigrateOutcome& outcome) {
    EXPECT_THAT(outcome.out, HasSubstr(in_brackets("no-library-slow")));
    EXPECT_EQ(hosts_.use_coming_to(other(host), empty[host == Host::kA ? 1 : 0]),
              empty[host == Host::kA ? 1 : 0]);
    EXPECT_GE(hosts_.use(host).vram_bytes, kVram);
    ASSERT_EQ(ask(host), expected++);
    ASSERT_TRUE(counter_is_intact(client_, hosts_, host));
  };
  move_to_and_fro(hosts_, counter.pid(), 4, check, kSlow);
}

TEST_F(WithoutLibrary, PrintsTheSameOutput) {
  const std::vector<std::string> command = stencil_command(hosts_, 64 * kMiB, 20);
  const App moved = start(command);
  ASSERT_TRUE(moved.wait_for_lines(3));
  std::vector<std::string> options = kSlow;
  options.insert(options.end(), {"--image-mode", "rounds"});
  const MigrateReport outcome = hosts_.migrate_for_report(Host::kA, moved.pid(), options);
  ASSERT_TRUE(migrated(outcome));
  EXPECT_GE(outcome.report.sent_image_bytes(), 32 * kMiB) << "its VRAM";
  EXPECT_EQ(outcome.report.vram_bytes(), 0u);
  const auto is_round = [](const auto& phase) { return phase.name() == "images round"; };
  EXPECT_TRUE(std::ranges::any_of(outcome.report.phases(), is_round))
      << "its ordinary memory needs no door";
  ASSERT_TRUE(moved.wait_for_lines(moved.lines().size() + 3));
  ASSERT_EQ(::kill(outcome.report.destination_pid(), SIGTERM), 0);
  EXPECT_TRUE(printed_what_prints(moved, start(command)));
}

TEST_F(WithoutLibrary, MovesWithMembersOfOtherKinds) {
  const App job = start_job();
  int expected = kCounterFirst;
  ASSERT_EQ(ask(), expected);
  ASSERT_EQ(ask_second(), std::to_string(expected));
  expect_refusal(migrate(job, {}), "no-library");
  const auto check = [&](Host host, const MigrateOutcome& outcome) {
    EXPECT_EQ(outcome.processes, 4);
    ASSERT_EQ(ask(host), ++expected);
    ASSERT_EQ(ask_second(host), std::to_string(expected));
    ASSERT_TRUE(counter_is_intact(client_, hosts_, host));
  };
  move_to_and_fro(hosts_, job.pid(), 2, check, kSlow);
}

TEST_F(WithoutLibrary, DrainMovesItInAMixedJobOnRequest) {
  const App job = start_job();
  ASSERT_EQ(ask_second(), std::to_string(kCounterFirst));
  const auto drain = [&](const std::string& options) {
    const std::string command = GCR_SOURCE_DIR "/scripts/drain " + hosts_.address(Host::kA) +
                                " --to " + hosts_.address(Host::kB) + " --cli " +
                                hosts_.variable("GCR_CLI") + " " + hosts_.variable("GCR_TLS") +
                                " --tries 1 " + options;
    return run(hosts_.on_host(Host::kA, {"/bin/sh", "-c", command}), kHangs);
  };
  const CommandResult refused = drain("");
  EXPECT_EQ(refused.exit_code, 1) << refused.out;
  EXPECT_THAT(refused.out, HasSubstr("no-library"));
  const CommandResult moved = drain("--migrate-option=--allow-slow");
  EXPECT_EQ(moved.exit_code, 0) << moved.out << moved.err;
  EXPECT_EQ(ask_second(Host::kB), std::to_string(kCounterFirst + 1));
}

TEST_F(WithoutLibrary, RunsOnIfTheDriverFindsManagedMemory) {
  const App managed = start({hosts_.program_path("managed_memory"), std::to_string(kSecondPort)});
  ASSERT_EQ(ask_second(), "1");
  const MigrateOutcome outcome = migrate(managed);
  EXPECT_EQ(outcome.exit_code, kFailedExit) << outcome.out;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("cannot checkpoint CUDA"), HasSubstr("managed memory")));
  EXPECT_EQ(ask_second(), "2");
}

TEST_F(WithoutLibrary, RunsOnIfItsWorkDoesNotEnd) {
  const App counter = start_bare_counter();
  const std::filesystem::path store =
      std::filesystem::path(hosts_.variable("VRAM", Host::kA)).parent_path();
  std::ofstream(store / "refuse") << "lock 600\n";  // CUDA_ERROR_NOT_READY
  const MigrateOutcome outcome = migrate(counter);
  EXPECT_EQ(outcome.exit_code, kFailedExit) << outcome.out;
  EXPECT_THAT(outcome.err, HasSubstr("work on its GPUs did not finish, and without the preload "
                                     "library its calls cannot be let pass one by one"));
  EXPECT_EQ(ask(), kCounterFirst);
  std::filesystem::remove(store / "refuse");
  ASSERT_TRUE(migrated(migrate(counter)));
  EXPECT_EQ(ask(Host::kB), kCounterFirst + 1);
}

TEST_F(WithoutLibrary, TwoThatMayShareMemoryAreRefused) {
  const App ring = start({hosts_.program_path("ring"), "--ranks", "2", "--legacy-ipc"});
  expect_refusal(migrate(ring), "unseen-memory");
  EXPECT_TRUE(ring.wait_for_lines(ring.lines().size() + 2)) << ring.output();
}

TEST_F(WithoutLibrary, IsRefusedWithMembersThatShareMemory) {
  const std::string output = hosts_.directory() + "/counter.out";
  const std::string script = "env -u LD_PRELOAD " + joined(counter_command(hosts_, kVram)) + " >" +
                             output + " &\nexec " + hosts_.program_path("ring") + " --ranks 2";
  const App job = hosts_.start_app(Host::kA, {"/bin/sh", "-c", script});
  ASSERT_TRUE(job.wait_for_lines(1)) << job.output();
  const auto has_line = [](const std::string& text) { return text.find('\n') != text.npos; };
  ASSERT_TRUE(wait_for_content(output, has_line, kPatience));
  const MigrateOutcome refused = migrate(job);
  expect_refusal(refused, "unseen-memory");
  EXPECT_THAT(refused.err, HasSubstr("other processes of the job share GPU memory"));
  EXPECT_TRUE(job.wait_for_lines(job.lines().size() + 2)) << job.output();
}

TEST_F(WithoutLibrary, IsRefusedIfAnotherProgramMayShareItsMemory) {
  const UnifiedMemoryDevice device;
  const App counter = start_bare_counter();
  {
    const App other = start(device.used_by(counter_command(hosts_, 0, kSecondPort)));
    const MigrateOutcome refused = migrate(counter);
    expect_refusal(refused, "unseen-memory");
    EXPECT_THAT(refused.err, HasSubstr("process " + std::to_string(other.pid())));
    EXPECT_EQ(ask(), kCounterFirst);
  }
  const App other =
      hosts_.start_app(Host::kA, device.used_by(counter_command(hosts_, 0, kSecondPort + 1)));
  ASSERT_TRUE(other.wait_for_lines(1)) << other.output();
  EXPECT_TRUE(migrated(migrate(counter))) << "under the library it reports that it shares nothing";
}

TEST_F(WithoutLibrary, IsRefusedWithAChildForkedAfterCudaInit) {
  const UnifiedMemoryDevice device;  // which it inherits, like NVIDIA's
  const App parent = start(device.used_by({"python3", "-c", R"py(
import ctypes, os, time
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
memory = ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 22)) == 0
if os.fork() != 0:
    print("forked", flush=True)
time.sleep(1000)
)py"}));
  const MigrateOutcome refused = migrate(parent);
  expect_refusal(refused, "unseen-memory");
  EXPECT_THAT(refused.err, HasSubstr("use the GPU's driver, and were not started under"));
}

TEST_F(WithoutLibrary, IsRefusedIfItsGroupHasNoRoomForItsVram) {
  App counter = start_bare_counter();
  proto::GroupLimits limits;
  limits.set_memory_bytes(kVram);
  const cgroups::Group group(cgroups::hierarchies(), "gcr-bare-e2e-" + std::to_string(::getpid()));
  const Status created = group.create(limits);
  ASSERT_TRUE(created) << created.error().message();
  const auto entries = group.entries();
  ASSERT_TRUE(entries) << entries.error().message();
  const std::string pid = std::to_string(counter.pid());
  for (const UniqueFd& entry : *entries) {
    ASSERT_EQ(::write(entry.get(), pid.data(), pid.size()), static_cast<ssize_t>(pid.size()));
  }
  const MigrateOutcome refused = migrate(counter);
  EXPECT_EQ(ask(), kCounterFirst);
  counter.program().signal(SIGKILL);
  EXPECT_TRUE(counter.program().wait(kPatience));
  EXPECT_TRUE(group.destroy());
  expect_refusal(refused, "memory-too-small");
  EXPECT_THAT(refused.err, HasSubstr("control groups allow 64 MiB of memory"));
}

TEST_F(WithoutLibrary, StoppedProcessIsNotQueried) {
  const App counter = start_bare_counter();
  ASSERT_EQ(::kill(counter.pid(), SIGSTOP), 0);
  expect_refusal(migrate(counter), "cuda-state");
  ASSERT_EQ(::kill(counter.pid(), SIGCONT), 0);
  EXPECT_EQ(ask(), kCounterFirst);
}

TEST_F(WithoutLibrary, RunsOnAfterACancelledMigration) {
  const App counter = start_bare_counter();
  const HostUse source = hosts_.use(Host::kA);
  BackgroundCommand migration(hosts_.migrate_command(
      Host::kA, Host::kB, counter.pid(), {"--allow-slow", "--pause-before-switchover"}));
  ASSERT_TRUE(migration.wait_for_output(
      [](const std::string& text) { return text.find("paused: ") != text.npos; }, kPatience));
  migration.program().signal(SIGINT);
  EXPECT_FALSE(TwoHosts::parse_outcome(migration.finish(kPatience)).migrated());
  EXPECT_EQ(ask(), kCounterFirst);
  EXPECT_EQ(hosts_.use_coming_to(Host::kA, source), source);
}

/// Where the source fails, and how.
class WithoutLibraryFailing : public WithoutLibrary,
                              public testing::WithParamInterface<const char*> {};

TEST_P(WithoutLibraryFailing, RunsOnUnlockedAndCanMoveLater) {
  const App counter = start_bare_counter();
  ASSERT_EQ(ask(), kCounterFirst);
  const HostUse source = hosts_.use(Host::kA);
  const HostUse destination = hosts_.use(Host::kB);
  const std::string fault = GetParam();
  const Host host = fault.starts_with("source.") ? Host::kA : Host::kB;
  std::ofstream(hosts_.directory(host) + "/faults") << fault << "\n";
  const MigrateOutcome failed = migrate(counter);
  EXPECT_FALSE(failed.migrated()) << failed.out;
  EXPECT_TRUE(std::filesystem::exists(hosts_.directory(host) + "/faults.hit"));
  EXPECT_EQ(ask(), kCounterFirst + 1);
  EXPECT_TRUE(counter_is_intact(client_, hosts_, Host::kA));
  EXPECT_EQ(hosts_.use_coming_to(Host::kA, source), source);
  EXPECT_EQ(hosts_.use_coming_to(Host::kB, destination), destination);
  ASSERT_TRUE(migrated(migrate(counter)));
  EXPECT_EQ(ask(Host::kB), kCounterFirst + 2);
  EXPECT_TRUE(counter_is_intact(client_, hosts_, Host::kB));
}

INSTANTIATE_TEST_SUITE_P(At, WithoutLibraryFailing,
                         testing::Values("source.gated error", "source.gated kill",
                                         "source.locked error", "source.locked kill",
                                         "source.checkpointed error", "source.checkpointed kill",
                                         "source.dumped error", "source.dumped kill",
                                         "source.awaiting kill", "destination.frozen kill",
                                         "destination.control-restored error",
                                         "destination.stopped kill"),
                         [](const auto& info) {
                           std::string name(info.param);
                           for (char& c : name) {
                             if (c == '.' || c == ' ' || c == '-') c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace gcr::e2e
