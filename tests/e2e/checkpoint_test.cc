// Checkpoints of running jobs, and restores from them.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iostream>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/units.h"
#include "tests/apps/handover.h"
#include "tests/e2e/checkpoints.h"
#include "tests/support/damage.h"

namespace gcr::e2e {
namespace {

namespace fs = std::filesystem;

TEST_F(CheckpointTest, JobRunsOnAndItsCheckpointRestoresOnBothHosts) {
  App counter = start_counter(hosts_, Host::kA, 16 * kMiB);
  UdpClient at_a(hosts_.variable("NS", Host::kA));
  ASSERT_EQ(ask_counter(at_a, hosts_, Host::kA), kCounterFirst);
  const HostUse before = hosts_.use(Host::kA);

  const CommandResult taken = checkpoint(counter.pid());
  ASSERT_EQ(taken.exit_code, 0) << taken.out << taken.err;
  EXPECT_GE(number(last_line(taken), "vram_bytes"), 16 * kMiB);
  EXPECT_EQ(hosts_.use_coming_to(Host::kA, before), before);
  EXPECT_EQ(ask_counter(at_a, hosts_, Host::kA), kCounterFirst + 1);
  EXPECT_TRUE(counter_is_intact(at_a, hosts_, Host::kA));
  end(counter);

  for (const Host host : {Host::kA, Host::kB, Host::kA}) {
    const HostUse idle = hosts_.use(host);
    const CommandResult restored = restore(host);
    ASSERT_EQ(restored.exit_code, 0) << restored.out << restored.err;
    EXPECT_EQ(last_line(restored)["verified"], "yes");
    EXPECT_EQ(ask_counter(at_a, hosts_, host), kCounterFirst + 1);
    EXPECT_TRUE(counter_is_intact(at_a, hosts_, host));
    end(static_cast<pid_t>(number(last_line(restored), "pid")));
    EXPECT_EQ(hosts_.use_coming_to(host, idle), idle);
  }
}

TEST_F(CheckpointTest, SecondOneWritesOnlyChanges) {
  App counter = start_counter(hosts_, Host::kA, 64 * kMiB);
  const CommandResult first = checkpoint(counter.pid(), {"--name", "first"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  UdpClient at_a(hosts_.variable("NS", Host::kA));
  ASSERT_EQ(ask_counter(at_a, hosts_, Host::kA), kCounterFirst);
  const CommandResult second = checkpoint(counter.pid(), {"--name", "second"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_GE(number(last_line(first), "stored_bytes"), 64 * kMiB);
  EXPECT_LT(number(last_line(second), "stored_bytes"), 16 * kMiB);
  end(counter);

  expect_counter(Host::kB, {"second"}, kCounterFirst + 1);
  expect_counter(Host::kB, {"first"}, kCounterFirst);
}

TEST_F(CheckpointTest, StopEndsTheJobAfterTheCheckpoint) {
  const HostUse idle = hosts_.use(Host::kA);
  App counter = start_counter(hosts_, Host::kA, 32 * kMiB);
  UdpClient at_a(hosts_.variable("NS", Host::kA));
  ASSERT_EQ(ask_counter(at_a, hosts_, Host::kA), kCounterFirst);
  const CommandResult taken = checkpoint(counter.pid(), {"--stop"});
  ASSERT_EQ(taken.exit_code, 0) << taken.out << taken.err;
  ASSERT_TRUE(counter.program().wait(kPatience));
  EXPECT_EQ(hosts_.use_coming_to(Host::kA, idle), idle);
  expect_counter(Host::kA, {}, kCounterFirst + 1);
}

TEST_F(CheckpointTest, RestoreReportsWhenVramIsFilled) {
  App counter = start_counter(hosts_, Host::kA, 32 * kMiB);
  ASSERT_EQ(checkpoint(counter.pid(), {"--stop"}).exit_code, 0);
  const CommandResult restored = restore(Host::kB);
  ASSERT_EQ(restored.exit_code, 0) << restored.err;
  EXPECT_NE(restored.out.find("filled before the process was restored"), std::string::npos)
      << restored.out;
  end(static_cast<pid_t>(number(last_line(restored), "pid")));
  const CommandResult later = restore(Host::kB, {"--no-prefill"});
  ASSERT_EQ(later.exit_code, 0) << later.err;
  EXPECT_NE(later.out.find("loaded after the process was restored"), std::string::npos)
      << later.out;
  end(static_cast<pid_t>(number(last_line(later), "pid")));
}

/// Success if `printed` equals the output of `undisturbed`, from one of its lines on.
testing::AssertionResult continues_as(const std::vector<std::string>& printed,
                                      const std::vector<std::string>& undisturbed) {
  const auto first = std::ranges::find(undisturbed, printed.front());
  if (undisturbed.end() - first < static_cast<std::ptrdiff_t>(printed.size()) ||
      !std::equal(printed.begin(), printed.end(), first)) {
    return testing::AssertionFailure() << "an undisturbed run does not print these lines:\n"
                                       << testing::PrintToString(printed);
  }
  return testing::AssertionSuccess();
}

TEST_F(CheckpointTest, RestoredProgramPrintsTheSameOutput) {
  App undisturbed = start_stencil(hosts_, Host::kB, 32 * kMiB, 5);
  App stencil = start_stencil(hosts_, Host::kA, 32 * kMiB, 5);
  ASSERT_TRUE(stencil.wait_for_lines(3));
  const CommandResult taken = checkpoint(stencil.pid());
  ASSERT_EQ(taken.exit_code, 0) << taken.err;
  ASSERT_TRUE(stencil.wait_for_lines(stencil.lines().size() + 3));
  end(stencil);
  EXPECT_TRUE(printed_what_prints(stencil, undisturbed));
  std::set<std::string> firsts;
  for (int i = 0; i < 10; ++i) {
    const std::size_t before = stencil.lines().size();
    const CommandResult restored = restore(i % 2 == 0 ? Host::kA : Host::kB);
    ASSERT_EQ(restored.exit_code, 0) << restored.err;
    ASSERT_TRUE(stencil.wait_for_lines(before + 3)) << stencil.output();
    end(static_cast<pid_t>(number(last_line(restored), "pid")));
    std::vector<std::string> printed = stencil.lines();
    printed.erase(printed.begin(), printed.begin() + static_cast<std::ptrdiff_t>(before));
    ASSERT_TRUE(undisturbed.wait_for_lines(before + printed.size()));
    EXPECT_TRUE(continues_as(printed, undisturbed.lines()));
    firsts.insert(printed.front());
  }
  EXPECT_EQ(firsts.size(), 1U);  // all of them where the checkpoint was taken
}

TEST_F(CheckpointTest, RunningOriginalPreventsARestoreWithoutCopy) {
  App stencil = start_stencil(hosts_, Host::kA, 16 * kMiB, 5);
  ASSERT_TRUE(stencil.wait_for_lines(1));
  ASSERT_EQ(checkpoint(stencil.pid()).exit_code, 0);
  const CommandResult refused = restore(Host::kA);
  EXPECT_EQ(refused.exit_code, kRefusedExit);
  EXPECT_NE(refused.err.find("still runs here"), std::string::npos) << refused.err;
  const CommandResult copied = restore(Host::kA, {"--copy"});
  ASSERT_EQ(copied.exit_code, 0) << copied.err;
  end(static_cast<pid_t>(number(last_line(copied), "pid")));
  EXPECT_TRUE(stencil.program().running());
}

TEST_F(CheckpointTest, AlteredPackIsFoundBeforeAnythingRuns) {
  App counter = start_counter(hosts_, Host::kA, 32 * kMiB);
  ASSERT_EQ(checkpoint(counter.pid(), {"--stop"}).exit_code, 0);
  const HostUse idle = hosts_.use(Host::kB);
  for (const auto& pack : fs::directory_iterator(store() + "/packs")) {
    for (std::uint64_t at = 64 * kKiB; at < pack.file_size() / 2; at += 512 * kKiB) {
      test::damage_byte(pack.path(), at);
    }
  }
  const CommandResult refused = restore(Host::kB);
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_EQ(hosts_.use_coming_to(Host::kB, idle), idle);
}

/// A small file system in place of the store.
class SmallStore {
 public:
  explicit SmallStore(std::string path) : path_(std::move(path)) {
    fs::create_directory(path_);
    EXPECT_EQ(::mount("small", path_.c_str(), "tmpfs", 0, "size=8M,mode=700"), 0);
  }
  ~SmallStore() { ::umount2(path_.c_str(), MNT_DETACH); }
  SmallStore(const SmallStore&) = delete;
  SmallStore& operator=(const SmallStore&) = delete;

  /// Leaves this much free.
  void leave(std::uint64_t bytes) const {
    struct statvfs now {};
    ASSERT_EQ(::statvfs(path_.c_str(), &now), 0);
    const std::uint64_t used = (now.f_blocks - now.f_bfree) * now.f_frsize;
    ASSERT_EQ(::mount("small", path_.c_str(), "tmpfs", MS_REMOUNT,
                      ("size=" + std::to_string(used + bytes)).c_str()),
              0);
  }

 private:
  const std::string path_;
};

TEST_F(CheckpointTest, FullDirectoryIsAFindingOrTheJobRunsOn) {
  const SmallStore small(store());
  App counter = start_counter(hosts_, Host::kA, 64 * kMiB);
  UdpClient client(hosts_.variable("NS", Host::kA));
  const auto refused = checkpoint(counter.pid());
  EXPECT_EQ(refused.exit_code, kRefusedExit);
  EXPECT_NE(refused.err.find("[checkpoint-room]"), std::string::npos) << refused.err;
  const auto asked = hosts_.order(
      Host::kA, {"preflight", std::to_string(counter.pid()), "--checkpoint", store(), "--json"});
  EXPECT_EQ(asked.exit_code, kRefusedExit);
  EXPECT_NE(asked.out.find("checkpoint-room"), std::string::npos) << asked.out << asked.err;

  small.leave(512 * kMiB);
  ASSERT_EQ(checkpoint(counter.pid(), {"--name", "first"}).exit_code, 0);
  small.leave(24 * kMiB);
  const auto second = checkpoint(counter.pid(), {"--name", "second", "--json"});
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_NE(second.out.find("checkpoint-room-short"), std::string::npos) << second.out;

  small.leave(64 * kKiB);
  const std::vector<std::string> before = files();
  ASSERT_EQ(ask_counter(client, hosts_, Host::kA), kCounterFirst);
  const auto full = checkpoint(counter.pid(), {"--name", "third"});
  EXPECT_EQ(full.exit_code, kFailedExit);
  EXPECT_NE(full.err.find("No space left"), std::string::npos) << full.err;
  EXPECT_EQ(files(), before);
  EXPECT_EQ(ask_counter(client, hosts_, Host::kA), kCounterFirst + 1);
  end(counter);
  ASSERT_EQ(restore(Host::kB).exit_code, 0);
}

TEST_F(CheckpointTest, JobWithSharedVramIsOneCheckpoint) {
  const std::vector<std::string> command{hosts_.program_path("ring"), "--ranks", "2", "--per-line",
                                         "20"};
  App ring = hosts_.start_app(Host::kA, command);
  ASSERT_TRUE(ring.wait_for_lines(4)) << ring.output();
  const CommandResult taken = checkpoint(ring.pid());
  ASSERT_EQ(taken.exit_code, 0) << taken.out << taken.err;
  EXPECT_GE(number(last_line(taken), "processes"), 3U);
  const std::size_t then = ring.lines().size();
  ASSERT_TRUE(ring.wait_for_lines(then + 4)) << ring.output();
  end(ring);
  const std::size_t before = ring.lines().size();
  const CommandResult restored = restore(Host::kB);
  ASSERT_EQ(restored.exit_code, 0) << restored.err;
  EXPECT_TRUE(ring.wait_for_lines(before + 4)) << ring.output();
  end(static_cast<pid_t>(number(last_line(restored), "pid")));
}

TEST_F(CheckpointTest, HandlesInTransitAreOpenedAfterARestore) {
  App handover = hosts_.start_app(Host::kA, {hosts_.program_path("handover")});
  ASSERT_TRUE(handover.wait_for_lines(10)) << handover.output();
  const CommandResult taken = checkpoint(handover.pid(), {"--stop"});
  ASSERT_EQ(taken.exit_code, 0) << taken.out << taken.err;
  const std::size_t before = handover.lines().size();
  const CommandResult restored = restore(Host::kB);
  ASSERT_EQ(restored.exit_code, 0) << restored.err;
  EXPECT_TRUE(handover.wait_for_lines(before + 20)) << handover.output();
  apps::HandoverLines expected;
  for (const std::string& line : handover.lines()) ASSERT_EQ(line, expected.next());
  const auto pid = static_cast<pid_t>(number(last_line(restored), "pid"));
  ASSERT_EQ(::kill(pid, SIGTERM), 0);  // and the files of its events are removed
  while (procfs::read_stat(pid)) std::this_thread::sleep_for(Milliseconds(10));
}

/// Where the agent's worker is killed, and whether there is a checkpoint afterwards.
struct Killed {
  const char* point;
  bool stops;
  bool complete;
};

void PrintTo(const Killed& killed, std::ostream* out) {
  *out << killed.point << (killed.stops ? " --stop" : "");
}

class CheckpointKilledTest : public CheckpointTest, public testing::WithParamInterface<Killed> {};

TEST_P(CheckpointKilledTest, EitherJobOrCheckpointRemains) {
  const auto [point, stops, complete] = GetParam();
  const HostUse idle = hosts_.use(Host::kA);
  App counter = start_counter(hosts_, Host::kA, 32 * kMiB);
  ASSERT_EQ(checkpoint(counter.pid(), {"--name", "earlier"}).exit_code, 0);
  const std::vector<std::string> earlier = files();
  UdpClient client(hosts_.variable("NS", Host::kA));
  ASSERT_EQ(ask_counter(client, hosts_, Host::kA), kCounterFirst);
  std::ofstream(hosts_.directory(Host::kA) + "/faults") << point << " kill\n";
  std::vector<std::string> options{"--name", "later"};
  if (stops) options.push_back("--stop");

  const CommandResult killed = checkpoint(counter.pid(), options);
  ASSERT_TRUE(hosts_.wait_until_idle(Host::kA));
  ASSERT_TRUE(fs::exists(hosts_.directory(Host::kA) + "/faults.hit"));
  EXPECT_EQ(killed.exit_code == 0, complete) << killed.err;

  const bool ended = stops && complete;
  if (ended) {
    ASSERT_TRUE(counter.program().wait(kPatience));
    EXPECT_EQ(hosts_.use_coming_to(Host::kA, idle), idle);
  } else {
    EXPECT_EQ(ask_counter(client, hosts_, Host::kA), kCounterFirst + 1);
    EXPECT_TRUE(counter_is_intact(client, hosts_, Host::kA));
    end(counter);
  }
  EXPECT_EQ(fs::exists(store() + "/later.checkpoint"), complete);
  if (!complete) {
    EXPECT_EQ(files(), earlier);
  }
  expect_counter(Host::kB, {complete ? "later" : "earlier"}, kCounterFirst + (complete ? 1 : 0));
}

INSTANTIATE_TEST_SUITE_P(
    Points, CheckpointKilledTest,
    testing::Values(Killed{"source.prepared", false, false},
                    Killed{"source.detached", false, false},
                    Killed{"source.checkpointed", false, false},
                    Killed{"source.dumped", false, false}, Killed{"source.flushed", true, false},
                    Killed{"source.recovery.resumed", false, false},
                    Killed{"source.checkpoint.stored", false, false},
                    Killed{"source.checkpoint.sealed", false, false},
                    Killed{"source.checkpoint.stored", true, false},
                    Killed{"source.checkpoint.sealed", true, false},
                    Killed{"source.voted", true, false}, Killed{"source.committed", true, true},
                    Killed{"source.confirmed", true, true}, Killed{"source.killed", true, true}));

class RestoreKilledTest : public CheckpointTest, public testing::WithParamInterface<const char*> {};

TEST_P(RestoreKilledTest, NothingRemainsAndRestoreSucceedsLater) {
  App counter = start_counter(hosts_, Host::kA, 32 * kMiB);
  ASSERT_EQ(checkpoint(counter.pid(), {"--stop"}).exit_code, 0);
  const HostUse idle = hosts_.use(Host::kA);
  const std::vector<std::string> before = files();
  std::ofstream(hosts_.directory(Host::kA) + "/faults") << GetParam() << " kill\n";
  EXPECT_NE(restore(Host::kA, {"--once"}).exit_code, 0);
  EXPECT_EQ(hosts_.use_coming_to(Host::kA, idle), idle);
  ASSERT_TRUE(fs::exists(hosts_.directory(Host::kA) + "/faults.hit"));
  EXPECT_EQ(files(), before);  // the undone restore releases its checkpoint
  const CommandResult restored = restore(Host::kA, {"--once"});
  ASSERT_EQ(restored.exit_code, 0) << restored.err;
  EXPECT_FALSE(fs::exists(store()));
  UdpClient client(hosts_.variable("NS", Host::kA));
  EXPECT_EQ(ask_counter(client, hosts_, Host::kA), kCounterFirst);
  EXPECT_TRUE(counter_is_intact(client, hosts_, Host::kA));
  end(static_cast<pid_t>(number(last_line(restored), "pid")));
}

INSTANTIATE_TEST_SUITE_P(Points, RestoreKilledTest,
                         testing::Values("source.load.began", "source.load.prepared",
                                         "source.load.sent", "source.load.voted",
                                         "destination.attached"));

class RestoreCorruptedTest : public CheckpointTest,
                             public testing::WithParamInterface<const char*> {};

TEST_P(RestoreCorruptedTest, CorruptVramIsFoundAndRestoreSucceedsLater) {
  App counter = start_counter(hosts_, Host::kA, 32 * kMiB);
  ASSERT_EQ(checkpoint(counter.pid(), {"--stop"}).exit_code, 0);
  const HostUse idle = hosts_.use(Host::kA);
  std::ofstream(hosts_.directory(Host::kA) + "/faults") << GetParam() << " corrupt\n";
  const CommandResult refused = restore(Host::kA);
  ASSERT_TRUE(fs::exists(hosts_.directory(Host::kA) + "/faults.hit"));
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_NE(refused.err.find("differs from what was sent"), std::string::npos) << refused.err;
  EXPECT_EQ(hosts_.use_coming_to(Host::kA, idle), idle);
  const CommandResult restored = restore(Host::kA);
  ASSERT_EQ(restored.exit_code, 0) << restored.err;
  end(static_cast<pid_t>(number(last_line(restored), "pid")));
}

INSTANTIATE_TEST_SUITE_P(Points, RestoreCorruptedTest,
                         testing::Values("destination.landing.corrupt",
                                         "destination.vram.corrupt"));

/// Its name matches its bytes: only the GPU's digest reveals the corruption.
TEST_F(CheckpointTest, ByteCorruptedBeforeStoringIsFoundAtRestore) {
  App counter = start_counter(hosts_, Host::kA, 32 * kMiB);
  std::ofstream(hosts_.directory(Host::kA) + "/faults") << "source.chunk.corrupt corrupt\n";
  ASSERT_EQ(checkpoint(counter.pid(), {"--stop"}).exit_code, 0);
  ASSERT_TRUE(fs::exists(hosts_.directory(Host::kA) + "/faults.hit"));
  const HostUse idle = hosts_.use(Host::kB);
  const CommandResult refused = restore(Host::kB);
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_NE(refused.err.find("differs from what was sent"), std::string::npos) << refused.err;
  EXPECT_EQ(hosts_.use_coming_to(Host::kB, idle), idle);
}

class RestoreKilledAfterCommitTest : public CheckpointTest,
                                     public testing::WithParamInterface<const char*> {};

TEST_P(RestoreKilledAfterCommitTest, JobRunsAndCheckpointIsRemoved) {
  App counter = start_counter(hosts_, Host::kA, 32 * kMiB);
  ASSERT_EQ(checkpoint(counter.pid(), {"--stop"}).exit_code, 0);
  std::ofstream(hosts_.directory(Host::kA) + "/faults") << GetParam() << " kill\n";
  const CommandResult restored = restore(Host::kA, {"--once"});
  EXPECT_EQ(restored.exit_code, 0) << restored.err;
  ASSERT_TRUE(hosts_.wait_until_idle(Host::kA));
  ASSERT_TRUE(fs::exists(hosts_.directory(Host::kA) + "/faults.hit"));
  EXPECT_FALSE(fs::exists(store()));
  UdpClient client(hosts_.variable("NS", Host::kA));
  EXPECT_EQ(ask_counter(client, hosts_, Host::kA), kCounterFirst);
  EXPECT_TRUE(counter_is_intact(client, hosts_, Host::kA));
  end(static_cast<pid_t>(number(last_line(restored), "pid")));
}

INSTANTIATE_TEST_SUITE_P(Points, RestoreKilledAfterCommitTest,
                         testing::Values("source.confirmed", "source.killed"));

TEST_F(CheckpointTest, OneOfTwoConcurrentRestoresSucceeds) {
  const HostUse idle[] = {hosts_.use(Host::kA), hosts_.use(Host::kB)};
  App counter = start_counter(hosts_, Host::kA, 32 * kMiB);
  ASSERT_EQ(checkpoint(counter.pid(), {"--stop", "--name", "last"}).exit_code, 0);
  BackgroundCommand at_a = begin(Host::kA, {"restore", store(), "last", "--once"});
  BackgroundCommand at_b = begin(Host::kB, {"restore", store(), "last", "--once"});
  const CommandResult ended[] = {at_a.finish(kPatience), at_b.finish(kPatience)};
  const bool runs_at_b = ended[1].exit_code == 0;
  ASSERT_NE(ended[0].exit_code == 0, runs_at_b) << ended[0].err << ended[1].err;
  const Host where = runs_at_b ? Host::kB : Host::kA;
  EXPECT_EQ(ended[runs_at_b ? 0 : 1].exit_code, kRefusedExit) << ended[0].err << ended[1].err;
  EXPECT_EQ(hosts_.use_coming_to(other(where), idle[runs_at_b ? 0 : 1]), idle[runs_at_b ? 0 : 1]);
  UdpClient client(hosts_.variable("NS", Host::kA));
  EXPECT_EQ(ask_counter(client, hosts_, where), kCounterFirst);
  EXPECT_FALSE(fs::exists(store()));
  EXPECT_NE(restore(where, {"last"}).exit_code, 0);
  end(static_cast<pid_t>(number(last_line(ended[runs_at_b ? 1 : 0]), "pid")));
}

TEST_F(CheckpointTest, SeriesKeepsTheNewestUntilTheJobEnds) {
  App counter = start_counter(hosts_, Host::kA, 16 * kMiB);
  UdpClient client(hosts_.variable("NS", Host::kA));
  BackgroundCommand series = begin(Host::kA, {"checkpoint", std::to_string(counter.pid()), store(),
                                              "--every", "1ms", "--keep", "2", "--json"});
  int asked = 0;
  for (const int taken : {2, 4, 6}) {
    ASSERT_TRUE(series.wait_for_output(
        [&](const std::string& out) {
          std::size_t reports = 0;
          for (std::size_t at = 0; (at = out.find("\"stored_bytes\"", at)) != out.npos; ++at) {
            ++reports;
          }
          return reports >= static_cast<std::size_t>(taken);
        },
        kPatience))
        << series.out_so_far() << series.err_so_far();
    EXPECT_EQ(ask_counter(client, hosts_, Host::kA), kCounterFirst + asked++);
  }
  EXPECT_TRUE(counter_is_intact(client, hosts_, Host::kA));
  end(counter);
  const CommandResult ended = series.finish(kPatience);
  EXPECT_EQ(ended.exit_code, 9) << ended.out << ended.err;
  ASSERT_TRUE(hosts_.wait_until_idle(Host::kA));
  EXPECT_EQ(checkpoints().size(), 2U);
  const CommandResult restored = restore(Host::kB);
  ASSERT_EQ(restored.exit_code, 0) << restored.err;
  EXPECT_GE(ask_counter(client, hosts_, Host::kB), kCounterFirst + 2);
  EXPECT_TRUE(counter_is_intact(client, hosts_, Host::kB));
  end(static_cast<pid_t>(number(last_line(restored), "pid")));
}

TEST_F(CheckpointTest, StartTimeDistinguishesReusedPids) {
  App counter = start_counter(hosts_, Host::kA, 16 * kMiB);
  const auto stat = procfs::read_stat(counter.pid());
  ASSERT_TRUE(stat);
  const CommandResult another =
      checkpoint(counter.pid(), {"--start-time", std::to_string(stat->start_time + 1)});
  EXPECT_EQ(another.exit_code, kRefusedExit);
  EXPECT_NE(another.err.find("now belongs to another process"), std::string::npos) << another.err;
  EXPECT_FALSE(fs::exists(store()));
  EXPECT_EQ(checkpoint(counter.pid(), {"--start-time", std::to_string(stat->start_time)}).exit_code,
            0);
}

TEST_F(CheckpointTest, LocalUserNeedsNoCertificate) {
  const std::string socket = hosts_.directory(Host::kA) + "/local.sock";
  const std::string config = hosts_.variable("CONFIG", Host::kA);
  const std::string before = read_file(config);
  std::ofstream(config) << "local_socket = \"" + socket + "\"\n" << before;
  hosts_.stop_agent(Host::kA);
  hosts_.start_agent(Host::kA);
  App counter = start_counter(hosts_, Host::kA, 16 * kMiB);
  UdpClient client(hosts_.variable("NS", Host::kA));
  ASSERT_EQ(ask_counter(client, hosts_, Host::kA), kCounterFirst);
  const auto local = [&](const std::string& command, const std::vector<std::string>& words) {
    std::vector<std::string> request{command, "local"};
    request.insert(request.end(), words.begin(), words.end());
    return run(local_command(hosts_, Host::kA, socket, request), kPatience);
  };
  const CommandResult taken =
      local("checkpoint", {std::to_string(counter.pid()), store(), "--stop"});
  ASSERT_EQ(taken.exit_code, 0) << taken.out << taken.err;
  ASSERT_TRUE(counter.program().wait(kPatience));
  const CommandResult restored = local("restore", {store()});
  ASSERT_EQ(restored.exit_code, 0) << restored.err;
  EXPECT_EQ(ask_counter(client, hosts_, Host::kA), kCounterFirst + 1);
  EXPECT_TRUE(counter_is_intact(client, hosts_, Host::kA));
  end(static_cast<pid_t>(number(last_line(restored), "pid")));
}

/// GCR_KILLED_CHECKPOINTS of them, which scripts/test --long sets.
int killed_checkpoints() {
  const char* const wanted = std::getenv("GCR_KILLED_CHECKPOINTS");
  return wanted == nullptr ? 25 : std::stoi(wanted);
}

/// At every moment: the job runs on, and every existing checkpoint is whole.
TEST_F(CheckpointTest, RandomKillsHarmNoCheckpoint) {
  const int kills = killed_checkpoints();
  App counter = start_counter(hosts_, Host::kA, 16 * kMiB);
  UdpClient client(hosts_.variable("NS", Host::kA));
  const auto began = std::chrono::steady_clock::now();
  ASSERT_EQ(checkpoint(counter.pid(), {"--name", "first"}).exit_code, 0);
  const auto took = std::chrono::steady_clock::now() - began;
  std::mt19937 random{std::random_device()()};
  std::uniform_real_distribution<double> share(0, 1.2);
  int complete = 0;
  for (int i = 0; i < kills; ++i) {
    auto ordered = std::async(std::launch::async, [&] {
      return checkpoint(counter.pid(), {"--name", "n" + std::to_string(i), "--keep", "3"});
    });
    // A time, not an event: the same must hold in every case.
    ordered.wait_for(took * share(random));
    for (const pid_t worker : hosts_.workers(Host::kA)) ::kill(worker, SIGKILL);
    complete += ordered.get().exit_code == 0 ? 1 : 0;
    ASSERT_TRUE(hosts_.wait_until_idle(Host::kA));
    ASSERT_EQ(ask_counter(client, hosts_, Host::kA), kCounterFirst + i) << i;
  }
  EXPECT_TRUE(counter_is_intact(client, hosts_, Host::kA));
  std::cout << complete << " of " << kills << " were complete before they were killed\n";
  expect_good();
  end(counter);
  for (const std::string& file : checkpoints()) {
    const std::string name = file.substr(0, file.rfind('.'));
    const CommandResult restored = restore(Host::kB, {name});
    ASSERT_EQ(restored.exit_code, 0) << name << ": " << restored.err;
    const int asked = name == "first" ? 0 : std::stoi(name.substr(1));
    EXPECT_EQ(ask_counter(client, hosts_, Host::kB), kCounterFirst + asked);
    EXPECT_TRUE(counter_is_intact(client, hosts_, Host::kB));
    end(static_cast<pid_t>(number(last_line(restored), "pid")));
  }

  App last = start_counter(hosts_, Host::kA, 16 * kMiB);
  ASSERT_EQ(checkpoint(last.pid(), {"--name", "last"}).exit_code, 0);
  for (const std::string& file : files()) {
    EXPECT_TRUE(file.ends_with(".checkpoint") || file == "writing" || file.ends_with(".pack"))
        << file;
  }
  ASSERT_TRUE(hosts_.wait_until_idle(Host::kA));  // it holds the lock until its end
  const auto pruned = ask_store("prune", {"--keep", "1"});
  EXPECT_EQ(pruned.exit_code, 0) << pruned.err;
  expect_good();
}

}  // namespace
}  // namespace gcr::e2e
