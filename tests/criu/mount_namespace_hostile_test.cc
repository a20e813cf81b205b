// Programs in a mount namespace of their own, where they choose the files behind CRIU's paths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <mutex>

#include "migrate-agent/criu/launch/launch.h"
#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/criu/runs/paused_queues.h"
#include "migrate-agent/linux/procfs/mount_namespace.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "tests/criu/program.h"

namespace gcr::criu::test {
namespace {

/// Whether the process that starts CRIU is delayed, and reports the PID long after CRIU runs.
bool starter_is_late = false;

bool reports_pid(const msghdr& message) {
  launch::ControlMessage told{};
  if (message.msg_iovlen != 1 || message.msg_iov[0].iov_len != sizeof(told)) return false;
  std::memcpy(&told, message.msg_iov[0].iov_base, sizeof(told));
  return told.event == launch::Event::kStarted;
}

namespace fs = std::filesystem;
using testing::HasSubstr;

Status drain(const std::string& /*name*/, UniqueFd content) {
  char bytes[65536];
  while (::read(content.get(), bytes, sizeof(bytes)) > 0) {
  }
  return {};
}

class MountNamespace : public testing::Test {
 protected:
  fs::path file() const { return directory_.path() / "output"; }
  fs::path mark() const { return directory_.path() / "mark"; }
  fs::path images() const { return directory_.make("images"); }

  /// A counting program in a mount namespace of its own, after the shell commands `setup` ran
  /// there; /mnt is the directory of this test.
  Output start(const std::string& setup, const std::string& mode = "count") {
    const std::string script =
        "set -e; mount --bind " + directory_.path().string() + " /mnt; " + setup +
        "; exec </dev/null >/dev/null 2>&1 " GCR_COUNTING_PROGRAM " \"$0\" \"$1\"";
    program_ = std::make_unique<Program>(
        std::vector<std::string>{"/usr/bin/unshare", "--mount", "--propagation", "private",
                                 "/bin/sh", "-c", script, file().string(), mode});
    return wait_for_progress(file(), {}, 5);
  }

  /// A program that reports which user runs it.
  fs::path covering_program() const {
    const fs::path path = directory_.path() / "covering";
    std::ofstream(path) << "#!/bin/sh\ngrep CapEff: /proc/self/status >>/mnt/mark\nexit 1\n";
    fs::permissions(path, fs::perms::owner_all);
    return path;
  }

  static std::string cover(const fs::path& with, const fs::path& what) {
    return "mount --bind " + with.string() + " " + what.string();
  }

  /// The genuine CRIU dumps the program: nothing mounted over it was run.
  void expect_genuine_dump() {
    auto prepared = PreparedDump::create(criu_command(), program_->pid(), images());
    EXPECT_FALSE(fs::exists(mark())) << std::ifstream(mark()).rdbuf();
    ASSERT_TRUE(prepared) << prepared.error().message();
    const auto report = prepared->run(drain);
    EXPECT_FALSE(fs::exists(mark())) << std::ifstream(mark()).rdbuf();
    ASSERT_TRUE(report) << report.error().message();
    ASSERT_TRUE(resume_stopped(program_->process()));
    expect_gapless(wait_for_progress(file(), read_output(file()), 20));
  }

  /// No CRIU is started for the program, for a reason with these words, and it runs on.
  void expect_refusal(const std::string& words) {
    const auto prepared = PreparedDump::create(criu_command(), program_->pid(), images());
    ASSERT_FALSE(prepared);
    EXPECT_EQ(prepared.error().code(), Code::kRefused);
    EXPECT_THAT(prepared.error().message(), HasSubstr(words));
    expect_gapless(wait_for_progress(file(), read_output(file()), 20));
  }

  /// `change` runs after CRIU was started, whose dump is then refused for a reason with these
  /// words; the program runs on.
  void expect_refusal_after(const std::function<void()>& change, const std::string& words) {
    auto prepared = PreparedDump::create(criu_command(), program_->pid(), images());
    ASSERT_TRUE(prepared) << prepared.error().message();
    change();
    const auto report = prepared->run(drain);
    ASSERT_FALSE(report);
    EXPECT_THAT(report.error().message(), HasSubstr(words));
    expect_gapless(wait_for_progress(file(), read_output(file()), 20));
  }

  /// Makes a program of mode "leave" enter another mount namespace.
  void leave_namespace() {
    const std::string before = procfs::namespace_link(program_->pid(), "mnt");
    ASSERT_EQ(::kill(program_->pid(), SIGUSR1), 0);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (procfs::namespace_link(program_->pid(), "mnt") == before) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      ::poll(nullptr, 0, 1);
    }
  }

  /// Mounts something over a file of the program in /proc, visible in its namespace.
  void cover_proc() {
    const std::string pid = std::to_string(program_->pid());
    Program cover({"/usr/bin/nsenter", "--mount=/proc/" + pid + "/ns/mnt", "/bin/mount", "--bind",
                   "/proc/1/environ", "/proc/" + pid + "/environ"});
    ASSERT_EQ(cover.reap(), 0);
  }

  static fs::path library(const char* name) {
    return fs::path(criu_command().argv.front()).parent_path() / "lib" / name;
  }

  Directory directory_;
  std::unique_ptr<Program> program_;
};

TEST_F(MountNamespace, ProgramMountedOverCriuIsNotRun) {
  start(cover(covering_program(), criu_command().argv.front()));
  expect_genuine_dump();
}

TEST_F(MountNamespace, CriuMayReportBeforeItsPidIsKnown) {
  start(":");
  starter_is_late = true;
  expect_genuine_dump();
  starter_is_late = false;
}

TEST_F(MountNamespace, ProgramMountedOverTheLoaderIsNotRun) {
  start(cover(covering_program(), library("ld-linux-x86-64.so.2")));
  expect_genuine_dump();
}

TEST_F(MountNamespace, LibraryMountedOverCriusIsNotLoaded) {
  start(cover(GCR_COVERING_LIBRARY, library("libuuid.so.1")));
  expect_genuine_dump();
}

TEST_F(MountNamespace, ProgramMountedOverTheShellIsNotRun) {
  const fs::path program = covering_program();
  start("cp /bin/sh " + (directory_.path() / "sh").string() + "; " +
        cover(program, "/usr/bin/readlink") + "; " + cover(program, "/usr/bin/dirname"));
  expect_genuine_dump();
}

TEST_F(MountNamespace, TmpfsOverProcIsRefused) {
  // As a process would fake it: /proc/self names the process that reads it.
  start("mount --bind /proc /media; mount -t tmpfs none /proc; ln -s /media/self /proc/self");
  expect_refusal("/proc");
}

TEST_F(MountNamespace, OtherProcessMountedOverProcSelfIsRefused) {
  start("mount --bind /proc/1 /proc/$$");
  expect_refusal("/proc");
}

TEST_F(MountNamespace, ForeignCriuCacheIsRefused) {
  start("mount -t tmpfs none /run; echo fake >/run/criu.kdat");
  expect_refusal("/run/criu.kdat");
}

/// An empty /dev, except for what this test and its programs need.
constexpr char kOwnDev[] =
    "mount --bind /dev/shm /media; mount -t tmpfs none /dev; mkdir /dev/dri /dev/shm; "
    "mount --bind /media /dev/shm; mknod -m 666 /dev/null c 1 3; ";

/// The files that CRIU's AMD plugin would read there.
TEST_F(MountNamespace, GenuineSysAndGpuDevicesAreAccepted) {
  start("mount -t tmpfs none /sys/devices/virtual/powercap 2>/dev/null || :");
  const Status view = procfs::check_view_of_gpus(program_->pid());
  EXPECT_TRUE(view) << view.error().message();
}

TEST_F(MountNamespace, FakeGpusAreRefused) {
  const std::pair<std::string, const char*> covers[] = {
      {"mount -t tmpfs none /sys", "/sys is not a sysfs"},
      {"mount --bind /sys/class /sys", "/sys is not a sysfs"},
      {"mount -t tmpfs none /sys/class", "something is mounted over /sys/class"},
      {"mount --bind /sys/class/net /sys/devices/virtual", "something is mounted over"},
      {std::string(kOwnDev) + "mknod /dev/kfd c 1 3", "/dev/kfd is not the kernel's"},
      {std::string(kOwnDev) + "ln -s null /dev/kfd", "/dev/kfd is not the kernel's"},
      {std::string(kOwnDev) + "mknod /dev/dri/renderD128 c 226 129",
       "/dev/dri/renderD128 is not the kernel's"},
      {std::string(kOwnDev) + "touch /dev/dri/renderD129",
       "/dev/dri/renderD129 is not the kernel's"},
      {"mount -t tmpfs none /usr/share; mkdir /usr/share/libdrm; "
       "echo >/usr/share/libdrm/amdgpu.ids",
       "/usr/share/libdrm/amdgpu.ids is not this host's"}};
  for (const auto& [setup, words] : covers) {
    fs::remove(file());
    start(setup);
    const Status view = procfs::check_view_of_gpus(program_->pid());
    ASSERT_FALSE(view) << setup;
    EXPECT_THAT(view.error().message(), HasSubstr(words)) << setup;
  }
}

/// No request to the kernel's driver reaches it.
TEST_F(MountNamespace, FileNamedKfdIsNoComputeDevice) {
  start(std::string(kOwnDev) + "mknod /dev/kfd c 1 3; exec 7<>/dev/kfd");
  EXPECT_EQ(plugin_for(program_->pid()), kAmdGpuPlugin);
  const Status done = let_queues_go_on(program_->process());
  EXPECT_TRUE(done) << done.error().message();
  expect_gapless(wait_for_progress(file(), read_output(file()), 20));
}

TEST_F(MountNamespace, RenderNodesAreRecognisedByDeviceNumber) {
  start(std::string(kOwnDev) +
        "mkdir /dev/dri/by-path; mknod /dev/dri/renderD128 c 226 128; "
        "mknod /dev/dri/card0 c 226 0");
  const Status view = procfs::check_view_of_gpus(program_->pid());
  EXPECT_TRUE(view) << view.error().message();
}

TEST_F(MountNamespace, ForeignUserNamespaceIsRefused) {
  program_ = std::make_unique<Program>(
      std::vector<std::string>{"/usr/bin/unshare", "--user", "--map-root-user", "--mount",
                               GCR_COUNTING_PROGRAM, file().string(), "count"});
  wait_for_progress(file(), {}, 5);
  expect_refusal("user namespace");
}

TEST_F(MountNamespace, LeavingTheNamespaceWhileCriuWaitsIsRefused) {
  start("true", "leave");
  expect_refusal_after([this] { leave_namespace(); }, "left its mount namespace");
}

TEST_F(MountNamespace, ProcCoveredWhileCriuWaitsIsRefused) {
  start("true");
  expect_refusal_after([this] { cover_proc(); }, "something is mounted over /proc/");
}

TEST_F(MountNamespace, ProcCoveredDuringTheDumpIsRefused) {
  start("true");
  auto prepared = PreparedDump::create(criu_command(), program_->pid(), images());
  ASSERT_TRUE(prepared) << prepared.error().message();
  std::once_flag covered;
  const auto report = prepared->run([&](const std::string& name, UniqueFd content) {
    std::call_once(covered, [&] { cover_proc(); });
    return drain(name, std::move(content));
  });
  ASSERT_FALSE(report);
  EXPECT_THAT(report.error().message(), HasSubstr("something is mounted over /proc/"));
  expect_gapless(wait_for_progress(file(), read_output(file()), 20));
}

TEST_F(MountNamespace, LeavingTheAgentsNamespaceIsRefused) {
  program_ = std::make_unique<Program>(file(), "leave");
  wait_for_progress(file(), {}, 5);
  expect_refusal_after([this] { leave_namespace(); }, "left its mount namespace");
}

}  // namespace
}  // namespace gcr::criu::test

/// Replaces that of the C library, in this program and in its children.
extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  if (gcr::criu::test::starter_is_late && gcr::criu::test::reports_pid(*message)) ::usleep(500'000);
  return ::syscall(SYS_sendmsg, socket, message, flags);
}
