// Jobs of several processes: a root and all processes below it, with the resources that they share.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "migrate-agent/linux/cgroups/hierarchy.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"
#include "tests/support/wait_until.h"

namespace gcr::e2e {
namespace {

using testing::HasSubstr;

/// A tree of Python programs without a GPU around a counter, which is one of its children.
class JobTest : public testing::Test {
 protected:
  static constexpr std::size_t kSome = 5;

  /// The hosts' clocks are days apart, but not the clocks that the job sees.
  explicit JobTest(const std::vector<std::string>& options = {"--clock-b", "1000000"})
      : hosts_(options) {}

  App start_tree(Host host) {
    std::vector<std::string> command = {"python3", GCR_SOURCE_DIR "/tests/e2e/tree.py",
                                        gpu_output_};
    const auto counter = counter_command(hosts_, 32 * kMiB);
    command.insert(command.end(), counter.begin(), counter.end());
    App tree = hosts_.start_app(host, command);
    EXPECT_TRUE(tree.wait_for_lines(kSome)) << tree.output();
    wait_for_counter();
    return tree;
  }

  /// The process that writes to gpu_output_ has GPU memory when this returns.
  void wait_for_counter() const {
    const auto has_line = [](const std::string& text) { return text.find('\n') != text.npos; };
    EXPECT_TRUE(wait_for_content(gpu_output_, has_line, kPatience)) << "the counter prints nothing";
  }

  /// A job whose root is `command`, which prints lines, with a counter below it.
  App start_with_counter(const std::string& command) {
    App script = hosts_.start_app(Host::kA, {"/bin/sh", "-c",
                                             joined(counter_command(hosts_, 0)) + " > " +
                                                 gpu_output_ + " & exec " + command});
    EXPECT_TRUE(script.wait_for_lines(1)) << script.output();
    wait_for_counter();
    return script;
  }

  /// Every line that the tree has printed shows that each member has answered once.
  static void expect_whole(const App& tree) {
    ASSERT_TRUE(tree.wait_for_lines(tree.lines().size() + kSome)) << tree.output();
    std::size_t number = 0;
    for (const std::string& line : tree.lines()) {
      ASSERT_EQ(line, std::to_string(++number) + " all");
    }
  }

  /// Of 256 MiB that two processes share and read repeatedly, only the pages with data are sent.
  void expect_zeros_left_out() {
    const App script = start_with_counter("python3 " GCR_SOURCE_DIR "/tests/e2e/mostly_zeros.py");
    const MigrateReport outcome = hosts_.migrate_for_report(Host::kA, script.pid(), {});
    ASSERT_TRUE(migrated(outcome));
    const std::uint64_t by_criu =
        outcome.report.image_bytes() - outcome.report.memory_image_bytes();
    EXPECT_LT(by_criu, 128 * kMiB);
    ASSERT_TRUE(script.wait_for_lines(script.lines().size() + kSome)) << script.output();
    std::size_t look = 0;
    for (const std::string& line : script.lines()) EXPECT_EQ(line, fmt::format("look {}", ++look));
  }

  TwoHosts hosts_;
  const std::string gpu_output_ = hosts_.directory() + "/gpu.out";
  UdpClient client_{hosts_.variable("NS", Host::kA)};
};

TEST_F(JobTest, AllProcessesMoveWithSharedResources) {
  const HostUse before[] = {hosts_.use(Host::kA), hosts_.use(Host::kB)};
  App tree = start_tree(Host::kA);
  int expected = kCounterFirst;
  ASSERT_EQ(ask_counter(client_, hosts_, Host::kA), expected++);
  const auto check = [&](Host host, const MigrateOutcome&) {
    // The shell that started it stays at its first host, as a zombie's parent.
    const HostUse left = hosts_.use(other(host));
    EXPECT_EQ(left.vram_bytes, before[host == Host::kA ? 1 : 0].vram_bytes);
    EXPECT_EQ(left.processes, before[host == Host::kA ? 1 : 0].processes);
    ASSERT_EQ(ask_counter(client_, hosts_, host), expected++);
    expect_whole(tree);
  };
  ASSERT_NO_FATAL_FAILURE(move_to_and_fro(hosts_, tree.pid(), 4, check));
  EXPECT_TRUE(counter_is_intact(client_, hosts_, Host::kA));
  std::ofstream(gpu_output_ + ".reap").put('1');
  EXPECT_TRUE(test::wait_until([&] { return tree.lines().back() == "zombie 7"; })) << tree.output();
}

/// A shell script around a counter, as batch systems start programs.
App start_script(TwoHosts& hosts, const std::string& script) {
  App app = hosts.start_app(Host::kA, {"/bin/sh", "-c", script});
  EXPECT_TRUE(app.wait_for_lines(1)) << app.output();
  return app;
}

TEST_F(JobTest, ScriptContinuesWhenItsProgramEndsAfterTheMove) {
  const App script =
      start_script(hosts_, joined(counter_command(hosts_, 0)) + "; echo it ended with $?");
  const MigrateOutcome outcome = hosts_.migrate(Host::kA, script.pid());
  ASSERT_TRUE(migrated(outcome));
  ASSERT_EQ(ask_counter(client_, hosts_, Host::kB), kCounterFirst);
  const auto children = procfs::tree(outcome.pid);
  ASSERT_EQ(children.size(), 2u);
  ASSERT_EQ(::kill(children[1], SIGTERM), 0);
  ASSERT_TRUE(script.wait_for_lines(2));
  EXPECT_EQ(script.lines().back(), "it ended with 0");
}

/// The GPU program starts it by vfork: until its execve a child shares the parent's driver state.
TEST_F(JobTest, MemberThatStartsProgramsInTurnMoves) {
  const App script = start_script(
      hosts_, "(while :; do /bin/true; done) & export LD_PRELOAD=$LD_PRELOAD:" GCR_VFORKING
              "; exec " +
                  joined(counter_command(hosts_, 0)));
  int expected = kCounterFirst;
  move_to_and_fro(hosts_, script.pid(), 4, [&](Host host, const MigrateOutcome&) {
    EXPECT_EQ(ask_counter(client_, hosts_, host), expected++);
  });
}

/// The parent has the driver's files open and no context, as launchers have that count GPUs.
TEST_F(JobTest, ParentThatUsedNvmlMovesAndCanUseItAgain) {
  const UnifiedMemoryDevice device;
  const App parent = hosts_.start_app(
      Host::kA,
      device.used_by({"python3", (GCR_SOURCE_DIR "/tests/e2e/nvml_parent.py"), GCR_SOFTNVML,
                      "/bin/sh", "-c",
                      "exec " + joined(counter_command(hosts_, 16 * kMiB)) + " > " + gpu_output_}));
  wait_for_counter();
  const auto first_gpu = [&](Host host) {
    const std::string all = hosts_.variable("GPU_ENV", host);
    const std::size_t at = all.find("GPU-");
    return all.substr(at, all.find(':', at) - at);
  };
  int expected = kCounterFirst;
  const auto check = [&](Host host, const MigrateOutcome&) {
    ASSERT_TRUE(parent.wait_for_lines(parent.lines().size() + kSome)) << parent.output();
    std::size_t number = 0;
    for (const std::string& line : parent.lines()) {
      EXPECT_THAT(line, testing::StartsWith(fmt::format("{} (0, 0) ", ++number)));
    }
    EXPECT_THAT(parent.lines().back(), testing::EndsWith(first_gpu(host)));
    EXPECT_EQ(ask_counter(client_, hosts_, host), expected++);
  };
  check(Host::kA, {});
  move_to_and_fro(hosts_, parent.pid(), 4, check);
}

TEST_F(JobTest, MemoryWrittenBetweenRoundsArrivesIntact) {
  const App script = start_with_counter("python3 " GCR_SOURCE_DIR "/tests/e2e/sweeping.py 64");
  Host host = Host::kA;
  pid_t pid = script.pid();
  for (int move = 0; move < 4; ++move) {
    ASSERT_TRUE(script.wait_for_lines(script.lines().size() + kSome)) << script.output();
    const MigrateReport outcome = hosts_.migrate_for_report(host, pid, {});
    ASSERT_TRUE(migrated(outcome));
    EXPECT_EQ(outcome.report.image_mode(), "rounds");
    pid = static_cast<pid_t>(outcome.report.destination_pid());
    host = other(host);
  }
  ASSERT_TRUE(script.wait_for_lines(script.lines().size() + kSome)) << script.output();
  std::size_t sweep = 0;
  for (const std::string& line : script.lines()) EXPECT_EQ(line, fmt::format("sweep {}", ++sweep));
}

/// Two processes, each with a heap that it checks before each line.
class HeapTest : public JobTest, public testing::WithParamInterface<const char*> {};

TEST_P(HeapTest, GrowingSplitAndReleasedHeapArrivesIntact) {
  const App script = start_with_counter(
      std::string(GCR_BINARY_DIR "/bin/counting_program /dev/stdout ") + GetParam());
  Host host = Host::kA;
  pid_t pid = script.pid();
  for (int move = 0; move < 3; ++move) {
    ASSERT_TRUE(script.wait_for_lines(script.lines().size() + kSome)) << script.output();
    const MigrateReport outcome = hosts_.migrate_for_report(host, pid, {});
    ASSERT_TRUE(migrated(outcome));
    pid = static_cast<pid_t>(outcome.report.destination_pid());
    host = other(host);
  }
  ASSERT_TRUE(script.wait_for_lines(script.lines().size() + kSome)) << script.output();
  std::map<std::string, int> numbers;
  for (const std::string& line : script.lines()) {
    if (line.starts_with("ready ")) continue;
    const std::string thread = line.substr(0, line.find(' '));
    EXPECT_EQ(line, fmt::format("{} {}", thread, ++numbers[thread]));
  }
  EXPECT_EQ(numbers.size(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Job, HeapTest, testing::Values("heap", "huge-heap", "loose-heap"));

TEST_F(JobTest, ZerosOfSharedMemoryBypassCriu) { expect_zeros_left_out(); }

/// A short-lived compiler, for example: a second later no process uses the file that host b lacks.
TEST(JobWithAPassingMember, IsExaminedAgainAfterTheMemberEnded) {
  TwoHosts hosts({"--prepare-b",
                  "mkdir $1/../passing && touch $1/../passing/file && "
                  "mount -t tmpfs none $1/../passing"});
  const std::string go = hosts.directory() + "/go";
  const App job = hosts.start_app(
      Host::kA, {"/bin/sh", "-c",
                 joined(counter_command(hosts, 0)) + " > " + hosts.directory() +
                     "/gpu.out & exec python3 " GCR_SOURCE_DIR "/tests/e2e/passing.py " +
                     hosts.directory() + "/passing/file " + go});
  const auto has_line = [](const std::string& text) { return text.find('\n') != text.npos; };
  ASSERT_TRUE(wait_for_content(hosts.directory() + "/gpu.out", has_line, kPatience));
  std::ofstream(go).put('1');
  const auto holds = [](const std::string& text) { return text.find("held") != text.npos; };
  ASSERT_TRUE(test::wait_until([&] { return holds(job.output()); })) << job.output();
  ASSERT_TRUE(migrated(hosts.migrate(Host::kA, job.pid())));
  EXPECT_TRUE(job.wait_for_lines(job.lines().size() + 5)) << job.output();
}

/// The source has control groups of version 1, or none: CRIU stops the job by itself. No group that
/// the source's agent cannot see limits the job.
class JobThatCriuCannotFreeze : public JobTest {
 protected:
  JobThatCriuCannotFreeze() : JobTest({"--prepare-a", hide_version_two()}) {
    for (const cgroups::Hierarchy& hierarchy : cgroups::hierarchies()) {
      if (hierarchy.version != cgroups::Version::kTwo) continue;
      std::ofstream group(hierarchy.mount / "cgroup.procs");
      EXPECT_TRUE(group << ::getpid() << std::flush);  // the job will be a child of this process
    }
  }

  static std::string hide_version_two() {
    std::string hide = "sed -i '1i allow_unfrozen = true' $1/agent.toml";
    for (const cgroups::Hierarchy& hierarchy : cgroups::hierarchies()) {
      if (hierarchy.version == cgroups::Version::kTwo)
        hide += "; umount -l " + hierarchy.mount.string();
    }
    return hide;
  }
};

TEST_F(JobThatCriuCannotFreeze, ZerosOfSharedMemoryBypassCriu) { expect_zeros_left_out(); }

TEST_F(JobTest, PipeOfAChildToAnOutsiderIsRefused) {
  const std::string fifo = hosts_.directory() + "/fifo";
  const App outsider = hosts_.start_app(
      Host::kA, {"/bin/sh", "-c", "mkfifo " + fifo + "; echo made; exec sleep 1000 <>" + fifo});
  ASSERT_TRUE(outsider.wait_for_lines(1));
  const App script = start_script(
      hosts_, "sleep 1000 <>" + fifo + " & exec " + joined(counter_command(hosts_, 0)));
  const MigrateOutcome outcome = hosts_.migrate(Host::kA, script.pid());
  EXPECT_EQ(outcome.exit_code, kRefusedExit);
  EXPECT_THAT(outcome.err, HasSubstr("outside-pipe"));
  EXPECT_THAT(outcome.err, HasSubstr("(sleep)"));
  EXPECT_THAT(outcome.err, HasSubstr("process " + std::to_string(outsider.pid())));
  EXPECT_EQ(ask_counter(client_, hosts_, Host::kA), kCounterFirst);
}

/// If the agent may not read the limits of other users' processes, it reports that.
TEST_F(JobTest, MemberOfAnotherUserMovesWithTheRest) {
  constexpr uid_t kUnprivileged = 65'534;
  const App script = start_script(hosts_, "setpriv --reuid " + std::to_string(kUnprivileged) +
                                              " --clear-groups sleep 1000 >/dev/null 2>&1 & exec " +
                                              joined(counter_command(hosts_, 0)));
  const MigrateOutcome outcome = hosts_.migrate(Host::kA, script.pid());
  const bool may_read_limits = (procfs::status_bits("self", "CapEff") >> CAP_SYS_RESOURCE & 1) != 0;
  if (!may_read_limits) {
    EXPECT_EQ(outcome.exit_code, kRefusedExit);
    EXPECT_THAT(outcome.err, HasSubstr("agent-capabilities"));
    EXPECT_EQ(ask_counter(client_, hosts_, Host::kA), kCounterFirst);
    return;
  }
  ASSERT_TRUE(migrated(outcome));
  EXPECT_EQ(ask_counter(client_, hosts_, Host::kB), kCounterFirst);
  const auto tree = procfs::tree(outcome.pid);
  ASSERT_EQ(tree.size(), 2u);
  EXPECT_EQ(procfs::owner_of(tree[0]), ::getuid());
  EXPECT_EQ(procfs::owner_of(tree[1]), kUnprivileged);
}

/// Two counters of one job, each with its own VRAM.
TEST_F(JobTest, SeveralGpuProcessesMoveToAndFro) {
  constexpr std::uint16_t kSecondPort = kCounterPort + 1;
  const App script =
      start_script(hosts_, joined(counter_command(hosts_, 96 * kMiB, kSecondPort)) + "& exec " +
                               joined(counter_command(hosts_, 32 * kMiB)));
  ASSERT_TRUE(script.wait_for_lines(2));
  const auto ask_second = [&](Host host, const std::string& question = "next") {
    return client_.ask(hosts_.address(host), kSecondPort, kPatience, question).value_or("nothing");
  };
  int expected = kCounterFirst;
  ASSERT_EQ(ask_counter(client_, hosts_, Host::kA), expected);
  ASSERT_EQ(ask_second(Host::kA), std::to_string(expected++));
  const auto check = [&](Host host, const MigrateOutcome& outcome) {
    EXPECT_GE(outcome.vram_bytes, 128 * kMiB);
    ASSERT_EQ(ask_counter(client_, hosts_, host), expected);
    ASSERT_EQ(ask_second(host), std::to_string(expected++));
  };
  ASSERT_NO_FATAL_FAILURE(move_to_and_fro(hosts_, script.pid(), 4, check));
  EXPECT_TRUE(counter_is_intact(client_, hosts_, Host::kA));
  EXPECT_EQ(ask_second(Host::kA, "verify"), "intact");
}

/// Starts it with `gcr-migrate run --output FILE --detach`; returns its PID.
pid_t start_detached(const TwoHosts& hosts, const std::string& file, const std::string& script) {
  const CommandResult started =
      run(hosts.on_host(Host::kA, {hosts.variable("GCR_CLI"), "run", "--output", file, "--detach",
                                   "--", "/bin/sh", "-c", script}),
          kPatience);
  EXPECT_EQ(started.exit_code, 0) << started.err;
  return std::atoi(started.out.c_str());
}

bool wait_until_gone(pid_t pid) {
  return test::wait_until([pid] { return procfs::has_ended(pid); });
}

bool grows(const std::string& path) {
  const std::size_t size = read_file(path).size();
  return wait_for_content(
      path, [&](const std::string& text) { return text.size() > size; }, kPatience);
}

/// The fields of that entry of a list whose `key` is `number`.
std::map<std::string, google::protobuf::Value> entry_of(const google::protobuf::Struct& answer,
                                                        const std::string& list,
                                                        const std::string& key, double number) {
  for (const auto& value : answer.fields().at(list).list_value().values()) {
    const auto& fields = value.struct_value().fields();
    if (fields.at(key).number_value() == number) return {fields.begin(), fields.end()};
  }
  throw std::runtime_error("no such entry: " + answer.DebugString());
}

TEST_F(JobTest, JobStartedByRunMovesWithItsSupervisor) {
  const std::string file = hosts_.directory() + "/job.log";
  pid_t pid = start_detached(
      hosts_, file,
      joined(counter_command(hosts_, 32 * kMiB)) +
          "& exec python3 -uc 'import time\nwhile True: print(\"tick\"); time.sleep(0.02)'");
  ASSERT_TRUE(wait_for_content(
      file,
      [](const std::string& text) {
        return text.find("listening") != text.npos && text.find("tick") != text.npos;
      },
      kPatience));
  const auto told = hosts_.ask(Host::kA, "host");
  const auto job = entry_of(told, "jobs", "pid", pid);
  EXPECT_EQ(job.at("processes").number_value(), 3);
  EXPECT_EQ(job.at("gpu_processes").number_value(), 1);
  EXPECT_THAT(entry_of(told, "processes", "job", pid).at("command").string_value(),
              HasSubstr("counter"));
  int expected = kCounterFirst;
  ASSERT_EQ(ask_counter(client_, hosts_, Host::kA), expected++);
  const auto check = [&](Host host, const MigrateOutcome& outcome) {
    EXPECT_EQ(outcome.processes, 3);
    pid = outcome.pid;
    const auto listed = hosts_.ask(other(host), "list", {"--all"}).fields();
    for (const auto& migration : listed.at("migrations").list_value().values()) {
      EXPECT_EQ(migration.struct_value().fields().at("processes").number_value(), 3);
    }
    const auto here = entry_of(hosts_.ask(host, "list", {"--all"}), "migrations", "pid", pid);
    EXPECT_EQ(here.at("members").list_value().values_size(), 3);
    ASSERT_TRUE(grows(file)) << read_file(file);
    ASSERT_EQ(ask_counter(client_, hosts_, host), expected++);
  };
  ASSERT_NO_FATAL_FAILURE(move_to_and_fro(hosts_, pid, 2, check));
  const std::string rotated = file + ".1";
  ASSERT_EQ(std::rename(file.c_str(), rotated.c_str()), 0);
  ASSERT_EQ(::kill(pid, SIGHUP), 0);
  ASSERT_TRUE(test::wait_until([&] { return ::access(file.c_str(), F_OK) == 0; }));
  ASSERT_TRUE(grows(file));
  // The command ends, and the counter stays in the job.
  const pid_t command = procfs::tree(pid).at(1);
  ASSERT_EQ(::kill(pid, SIGTERM), 0);
  // Until the supervisor has reaped it, it is in the tree, and the next signal goes to it.
  ASSERT_TRUE(test::wait_until([&] { return procfs::tree(pid).size() == 2; }));
  EXPECT_TRUE(procfs::has_ended(command));
  ASSERT_EQ(ask_counter(client_, hosts_, Host::kA), expected++);
  ASSERT_EQ(::kill(pid, SIGTERM), 0);
  EXPECT_TRUE(wait_until_gone(pid));
}

}  // namespace
}  // namespace gcr::e2e
