// Jobs that share memory by names: files on a tmpfs, which move with them, and System V objects.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "src/base/units.h"
#include "tests/apps/handover.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

/// `command`, to be run where host a's agent runs.
std::vector<std::string> in_mounts_of_a(const TwoHosts& hosts, std::vector<std::string> command) {
  const std::string mounts =
      "--mount=/proc/" + std::to_string(hosts.agent_pid(Host::kA)) + "/ns/mnt";
  // Its streams are reopened: a file belongs to a mount.
  constexpr char kReopen[] = "exec </dev/null >>\"$(readlink /proc/$$/fd/1)\" 2>&1; exec \"$@\"";
  command.insert(command.begin(), {"nsenter", mounts, "--", "sh", "-c", kReopen, "sh"});
  return command;
}

/// Each host has its own /dev/shm.
class NamedMemoryTest : public testing::Test {
 protected:
  static constexpr std::size_t kSome = 5;
  static constexpr char kAllFiles[] =
      "spawn,forkserver,fork,shared_memory,shm_open,semaphores,file";

  App start_at_a(const std::vector<std::string>& command, bool under_preload = true) {
    return hosts_.start_app(Host::kA, in_mounts_of_a(hosts_, command), under_preload);
  }

  /// `before`: a command prefix that starts it in another place.
  App start(const std::string& kinds, const std::vector<std::string>& before = {}) {
    std::vector<std::string> command = before;
    command.insert(command.end(), {"python3", "-B", (GCR_SOURCE_DIR "/tests/e2e/named_memory.py"),
                                   gpu_output_, kinds});
    const auto counter = counter_command(hosts_, 16 * kMiB);
    command.insert(command.end(), counter.begin(), counter.end());
    App app = start_at_a(command);
    EXPECT_TRUE(app.wait_for_lines(kSome)) << app.output();
    return app;
  }

  /// Every line that it has printed shows that each member has answered once.
  static void expect_whole(const App& app) {
    ASSERT_TRUE(app.wait_for_lines(app.lines().size() + kSome)) << app.output();
    std::size_t number = 0;
    for (const std::string& line : app.lines()) ASSERT_EQ(line, std::to_string(++number) + " all");
  }

  fs::path memory_of(Host host) const {
    return "/proc/" + std::to_string(hosts_.agent_pid(host)) + "/root/dev/shm";
  }

  std::set<std::string> names(Host host) const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(memory_of(host))) {
      found.insert(entry.path().filename());
    }
    return found;
  }

  void arm(Host host, const std::string& line) const {
    std::ofstream(hosts_.directory(host) + "/faults") << line << "\n";
  }

  TwoHosts hosts_{{"--prepare-a", "mount -t tmpfs none /dev/shm", "--prepare-b",
                   "mount -t tmpfs none /dev/shm", "--fault-points", "true"}};
  const std::string gpu_output_ = hosts_.directory() + "/gpu.out";
  UdpClient client_{hosts_.variable("NS", Host::kA)};
};

TEST_F(NamedMemoryTest, EveryKindOfFileIsOnOneHostAtATime) {
  const App app = start(kAllFiles);
  const auto files = names(Host::kA);
  ASSERT_GE(files.size(), 10u) << "Python has named semaphores";
  const fs::path two_names = "gcr-named-" + std::to_string(app.pid());
  struct stat status {};
  const auto check = [&](Host host, const MigrateOutcome&) {
    ASSERT_NO_FATAL_FAILURE(expect_whole(app));
    EXPECT_THAT(names(other(host)), IsEmpty());
    EXPECT_EQ(names(host), files);
    ASSERT_EQ(::stat((memory_of(host) / two_names).c_str(), &status), 0);
    EXPECT_EQ(status.st_nlink, 2u);
    EXPECT_EQ(status.st_mode & 0777, 0640u);
    EXPECT_LE(status.st_blocks, 16) << "holes stay holes";
  };
  ASSERT_NO_FATAL_FAILURE(move_to_and_fro(hosts_, app.pid(), 4, check));
  EXPECT_TRUE(counter_is_intact(client_, hosts_, Host::kA));
}

/// Of VRAM, by the library, and of events, which the driver keeps in files.
TEST_F(NamedMemoryTest, HandlesInTransitAreOpenedAfterAMove) {
  App app = start_at_a({hosts_.program_path("handover")});
  ASSERT_TRUE(app.wait_for_lines(10)) << app.output();
  const auto check = [&](Host, const MigrateOutcome&) {
    ASSERT_TRUE(app.wait_for_lines(app.lines().size() + 20)) << app.output();
    apps::HandoverLines expected;
    for (const std::string& line : app.lines()) ASSERT_EQ(line, expected.next());
  };
  ASSERT_NO_FATAL_FAILURE(move_to_and_fro(hosts_, app.pid(), 4, check));
}

TEST_F(NamedMemoryTest, FailuresLeaveTheFilesOnlyAtTheSource) {
  const App app = start("spawn,shm_open,semaphores");
  const auto files = names(Host::kA);
  const struct {
    Host host;
    const char* fault;
  } faults[] = {{Host::kB, "destination.carried error"},
                {Host::kB, "destination.carried kill"},
                {Host::kB, "destination.restored error"},
                {Host::kA, "source.dumped kill"},
                {Host::kA, "source.awaiting kill"}};
  for (const auto& [host, fault] : faults) {
    arm(host, fault);
    const MigrateOutcome outcome = hosts_.migrate(Host::kA, app.pid());
    EXPECT_FALSE(outcome.migrated()) << fault;
    ASSERT_NO_FATAL_FAILURE(expect_whole(app)) << fault;
    ASSERT_TRUE(hosts_.wait_until_idle(Host::kA)) << fault;
    ASSERT_TRUE(hosts_.wait_until_idle(Host::kB)) << fault;
    EXPECT_THAT(names(Host::kB), IsEmpty()) << fault;
    EXPECT_EQ(names(Host::kA), files) << fault;
  }
  EXPECT_TRUE(migrated(hosts_.migrate(Host::kA, app.pid())));
  ASSERT_NO_FATAL_FAILURE(expect_whole(app));
}

TEST_F(NamedMemoryTest, AfterTheCommitOnlyTheDestinationHasFiles) {
  const App app = start("spawn,shm_open");
  const auto files = names(Host::kA);
  arm(Host::kA, "source.confirmed kill");
  (void)hosts_.migrate(Host::kA, app.pid());
  ASSERT_NO_FATAL_FAILURE(expect_whole(app));
  ASSERT_TRUE(hosts_.wait_until_idle(Host::kA));
  EXPECT_THAT(names(Host::kA), IsEmpty());
  EXPECT_EQ(names(Host::kB), files);
}

TEST_F(NamedMemoryTest, NameTakenAtTheDestinationIsRefusedAndKept) {
  const App app = start("shm_open");
  const std::string name = "gcr-named-" + std::to_string(app.pid());
  std::ofstream(memory_of(Host::kB) / name) << "theirs";
  const MigrateOutcome refused = hosts_.migrate(Host::kA, app.pid());
  EXPECT_EQ(refused.exit_code, kRefusedExit);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("memory-file"), HasSubstr("/dev/shm/" + name +
                                                                     " is here "
                                                                     "already")));
  EXPECT_EQ(read_file(memory_of(Host::kB) / name), "theirs");
  ASSERT_NO_FATAL_FAILURE(expect_whole(app));
  // Taken when everything else is done.
  fs::remove(memory_of(Host::kB) / name);
  arm(Host::kB, "destination.imaged run touch " + (memory_of(Host::kB) / name).string());
  const MigrateOutcome failed = hosts_.migrate(Host::kA, app.pid());
  EXPECT_EQ(failed.exit_code, kFailedExit);
  EXPECT_THAT(failed.err, HasSubstr("cannot make the file in memory /dev/shm/" + name));
  EXPECT_TRUE(fs::exists(memory_of(Host::kB) / name));
  EXPECT_FALSE(fs::exists(memory_of(Host::kB) / (name + "-too")));
  ASSERT_NO_FATAL_FAILURE(expect_whole(app));
}

TEST_F(NamedMemoryTest, FileSharedWithAnOutsiderIsRefused) {
  const App app = start("shm_open");
  const std::string path = "/dev/shm/gcr-named-" + std::to_string(app.pid());
  {
    const App outsider =
        start_at_a({"/bin/sh", "-c", "exec <" + path + "; echo open; exec sleep 1000"}, false);
    ASSERT_TRUE(outsider.wait_for_lines(1));
    const MigrateOutcome refused = hosts_.migrate(Host::kA, app.pid());
    EXPECT_EQ(refused.exit_code, kRefusedExit);
    EXPECT_THAT(refused.err,
                AllOf(HasSubstr("shared-memory"), HasSubstr(path), HasSubstr("(python3)"),
                      HasSubstr("process " + std::to_string(outsider.pid()) + " (sleep) has too")));
  }
  EXPECT_TRUE(migrated(hosts_.migrate(Host::kA, app.pid())));
  ASSERT_NO_FATAL_FAILURE(expect_whole(app));
}

/// Python's own files and System V objects of every kind at once, in an IPC namespace of the job.
TEST_F(NamedMemoryTest, SystemVObjectsMoveInAPrivateIpcNamespace) {
  const App app = start("system-v,system-v-others,spawn", {"unshare", "--ipc"});
  move_to_and_fro(hosts_, app.pid(), 4, [&](Host, const MigrateOutcome&) { expect_whole(app); });
}

TEST_F(NamedMemoryTest, SystemVMemoryOfTheHostsNamespaceIsRefused) {
  constexpr key_t kKey = 0x67637200;                        // of named_memory.py
  (void)::shmctl(::shmget(kKey, 0, 0), IPC_RMID, nullptr);  // of a test that was killed
  const App app = start("system-v");
  const MigrateOutcome refused = hosts_.migrate(Host::kA, app.pid());
  EXPECT_EQ(refused.exit_code, kRefusedExit);
  EXPECT_THAT(refused.err, HasSubstr("system-v"));
  ASSERT_NO_FATAL_FAILURE(expect_whole(app));
  const int segment = ::shmget(kKey, 0, 0);
  ASSERT_GE(segment, 0);
  EXPECT_EQ(::shmctl(segment, IPC_RMID, nullptr), 0);
}

/// Both hosts have one /dev/shm, as two agents of one machine do.
TEST(SharedTmpfsTest, FilesOnSharedTmpfsStayInPlace) {
  std::string shm = "/dev/shm/gcr-shared-XXXXXX";
  ASSERT_NE(::mkdtemp(shm.data()), nullptr);
  const std::string mount = "mount --bind " + shm + " /dev/shm";
  TwoHosts hosts({"--prepare-a", mount, "--prepare-b", mount});
  std::vector<std::string> command =
      in_mounts_of_a(hosts, {"python3", "-B", (GCR_SOURCE_DIR "/tests/e2e/named_memory.py"),
                             hosts.directory() + "/gpu.out", "spawn,shm_open,semaphores"});
  const auto counter = counter_command(hosts, 16 * kMiB);
  command.insert(command.end(), counter.begin(), counter.end());
  const App app = hosts.start_app(Host::kA, command);
  ASSERT_TRUE(app.wait_for_lines(5)) << app.output();
  const std::string path = shm + "/gcr-named-" + std::to_string(app.pid());
  struct stat before {};
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  ASSERT_NO_FATAL_FAILURE(move_to_and_fro(hosts, app.pid(), 2, [&](Host, const MigrateOutcome&) {
    ASSERT_TRUE(app.wait_for_lines(app.lines().size() + 5));
    EXPECT_THAT(app.lines().back(), testing::EndsWith(" all"));
  }));
  struct stat after {};
  ASSERT_EQ(::stat(path.c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino);
  fs::remove_all(shm);
}

}  // namespace
}  // namespace gcr::e2e
