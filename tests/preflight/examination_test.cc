// The source's examination of a process and its host continues as far as it can: what is missing is
// a finding.
#include "migrate-agent/preflight/examine/examination.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/preflight/compare/comparison.h"
#include "src/base/unique_fd.h"
#include "src/base/units.h"

namespace gcr::preflight {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr pid_t kNoProcess = 4'194'303;
constexpr uid_t kUser = 65'534;

class Examining : public testing::Test {
 protected:
  Examining() {
    std::string path = "/dev/shm/gcr-examining-test-XXXXXX";
    if (::mkdtemp(path.data()) != nullptr) directory_ = path;
    ::chmod(directory_.c_str(), 0755);
    config_.criu.argv = {GCR_CRIU};
    config_.criu.reaper = GCR_REAPER;
    config_.state_dir = directory_;
    config_.runtime_dir = directory_;
  }
  ~Examining() override { fs::remove_all(directory_); }

  std::vector<std::string> found(pid_t pid, proto::ImageMode mode = proto::IMAGE_MODE_AUTO,
                                 const std::vector<pid_t>& members = {}) {
    proto::MigrateRequest request;
    request.set_pid(pid);
    request.set_image_mode(mode);
    const Examination examination =
        examine(request, config_, members.empty() ? std::vector{pid} : members);
    std::vector<std::string> ids;
    for (const proto::Finding& finding : examination.findings.list()) ids.push_back(finding.id());
    return ids;
  }

  /// The findings about one member of a job, which name it.
  std::vector<std::string> of_process(pid_t pid, const std::vector<pid_t>& members) {
    proto::MigrateRequest request;
    request.set_pid(members.front());
    std::vector<std::string> ids;
    const Examination examination = examine(request, config_, members);
    for (const proto::Finding& finding : examination.findings.list()) {
      const bool names_it = finding.found().find(std::to_string(pid)) != std::string::npos;
      if (names_it) ids.push_back(finding.id());
    }
    return ids;
  }

  fs::path directory_;
  worker::Config config_;
};

TEST_F(Examining, MissingProcessIsOneFinding) {
  EXPECT_THAT(found(kNoProcess), ElementsAre("no-process"));
}

TEST_F(Examining, MissingToolsDoNotHideOtherFindings) {
  config_.criu.argv = {(directory_ / "no-criu").string()};
  const auto ids = found(::getpid());
  EXPECT_THAT(ids, AllOf(Contains("criu-missing"), Contains("not-ours")));
}

/// A process that looks like a CUDA process under the library, and starts a child by vfork which
/// executes a program once `go` can be read; and the child.
class Vforking {
 public:
  explicit Vforking(const fs::path& directory) {
    const fs::path library = directory / "libgcr-preload.so";
    std::ofstream(library) << std::string(4096, 'x');
    std::string device = "/dev/nvidia-vforking-XXXXXX";
    const UniqueFd driver(::mkostemp(device.data(), O_CLOEXEC));
    ::unlink(device.c_str());
    const UniqueFd code(::open(library.c_str(), O_RDONLY | O_CLOEXEC));
    int go[2];
    if (!driver || !code || ::pipe2(go, O_CLOEXEC) != 0) throw std::runtime_error("no files");
    const UniqueFd wait(go[0]);
    go_.reset(go[1]);
    parent_ = ::fork();
    if (parent_ == 0) {
      ::close(go[1]);
      (void)::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, code.get(), 0);
      execute_by_vfork(wait.get());
      for (;;) ::pause();
    }
    while (procfs::tree(parent_).size() < 2) std::this_thread::yield();
    child_ = procfs::tree(parent_).back();
  }
  ~Vforking() {
    for (const pid_t pid : {child_, parent_}) ::kill(pid, SIGKILL);
    ::waitpid(parent_, nullptr, 0);
  }
  Vforking(const Vforking&) = delete;
  Vforking& operator=(const Vforking&) = delete;

  std::vector<pid_t> pids() const { return {parent_, child_}; }
  pid_t child() const { return child_; }
  void go() { go_.reset(); }

 private:
  static void execute_by_vfork(int wait) {
    char name[] = "/bin/sleep", time[] = "1000";
    char* const words[] = {name, time, nullptr};
    char byte = 0;
    if (::vfork() != 0) return;  // NOLINT(clang-analyzer-security.insecureAPI.vfork): on purpose
    while (::read(wait, &byte, 1) < 0) continue;  // NOLINT(clang-analyzer-unix.Vfork): on purpose
    ::execv(name, words);
    ::_exit(1);
  }

  UniqueFd go_;
  pid_t parent_ = -1;
  pid_t child_ = -1;
};

TEST_F(Examining, ChildInVforkIsNoGpuProgram) {
  const Vforking job(directory_);
  EXPECT_TRUE(procfs::is_in_vfork(job.child()));
  EXPECT_FALSE(procfs::is_in_vfork(job.pids().front()));
  EXPECT_THAT(of_process(job.child(), job.pids()),
              AllOf(Contains("in-vfork"), Not(Contains("no-door"))));
}

TEST_F(Examining, ChildThatLeavesVforkIsAnOrdinaryMember) {
  Vforking job(directory_);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    job.go();
  });
  const auto ids = of_process(job.child(), job.pids());
  later.join();
  EXPECT_THAT(ids, AllOf(Not(Contains("in-vfork")), Not(Contains("no-door"))));
  EXPECT_FALSE(procfs::is_in_vfork(job.child()));
}

TEST_F(Examining, TooManyProcessesAreAFinding) {
  const pid_t sleeper = ::fork();
  if (sleeper == 0) {
    ::pause();
    ::_exit(0);
  }
  std::vector<pid_t> members(gpu::kMaxMembers + 1, sleeper);
  EXPECT_THAT(found(sleeper, proto::IMAGE_MODE_AUTO, members), Contains("too-many-processes"));
  members.resize(2);
  EXPECT_THAT(found(sleeper, proto::IMAGE_MODE_AUTO, members), Not(Contains("too-many-processes")));
  ::kill(sleeper, SIGKILL);
  ::waitpid(sleeper, nullptr, 0);
}

TEST_F(Examining, SystemVObjectsAreAWarning) {
  // Objects of this test only.
  const pid_t asker = ::fork();
  if (asker == 0) {
    if (::unshare(CLONE_NEWIPC) != 0) ::_exit(2);
    const pid_t job = ::fork();
    if (job == 0) {
      ::pause();
      ::_exit(0);
    }
    const auto before = found(job);
    const bool made = ::semget(IPC_PRIVATE, 1, 0600) >= 0 && ::msgget(IPC_PRIVATE, 0600) >= 0;
    const auto after = found(job);
    ::kill(job, SIGKILL);
    const auto is_reported = [](const auto& ids) {
      return std::ranges::find(ids, "system-v-stays") != ids.end();
    };
    ::_exit(made && !is_reported(before) && is_reported(after) ? 0 : 1);
  }
  int status = 0;
  ::waitpid(asker, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(Examining, UnreadableProcessIsAFinding) {
  const pid_t target = ::fork();
  if (target == 0) {
    ::pause();
    ::_exit(0);
  }
  const pid_t asker = ::fork();
  if (asker == 0) {
    if (::setgid(kUser) != 0 || ::setuid(kUser) != 0) ::_exit(2);
    const auto ids = found(target);
    ::_exit(std::ranges::find(ids, "cannot-inspect") != ids.end() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(asker, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  ::kill(target, SIGKILL);
  ::waitpid(target, nullptr, 0);
}

TEST_F(Examining, ReportsOfTheAccessAreFindings) {
  const gpu::AccessState state{.managed_memory = true,
                               .ipc_memory = true,
                               .foreign_handles = true,
                               .past_gate = "libdeep.so calls past the gate: cuLaunchKernel",
                               .untracked_bytes = 5 << 20};
  findings::Findings findings(findings::Side::kSource);
  check_access(state, findings);
  std::vector<std::string> ids;
  for (const proto::Finding& finding : findings.list()) ids.push_back(finding.id());
  EXPECT_THAT(ids, ElementsAre("managed-memory", "ipc-memory", "foreign-handles", "past-gate"));
  EXPECT_THAT(findings.list()[3].found(), HasSubstr("libdeep.so"));
}

TEST_F(Examining, UntrackedMemoryIsAFinding) {
  findings::Findings findings(findings::Side::kSource);
  check_access({.untracked_bytes = 5 << 20}, findings);
  ASSERT_EQ(findings.list().size(), 1u);
  EXPECT_EQ(findings.list()[0].id(), "untracked-memory");
  EXPECT_THAT(findings.list()[0].found(), HasSubstr("5 MiB"));
}

TEST_F(Examining, WithheldFunctionsAreAFinding) {
  findings::Findings findings(findings::Side::kSource);
  check_access({.withheld = 3}, findings);
  ASSERT_EQ(findings.list().size(), 1u);
  EXPECT_EQ(findings.list()[0].id(), "withheld-functions");
  EXPECT_THAT(findings.list()[0].found(), HasSubstr("3 lookups"));
}

TEST_F(Examining, TooManyBuffersAreAFinding) {
  findings::Findings findings(findings::Side::kSource);
  check_inventory(kMaxBuffers, findings);
  EXPECT_TRUE(findings.list().empty());
  check_inventory(kMaxBuffers + 1, findings);
  ASSERT_EQ(findings.list().size(), 1u);
  EXPECT_EQ(findings.list()[0].id(), "too-many-buffers");
}

}  // namespace
}  // namespace gcr::preflight
