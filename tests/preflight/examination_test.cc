// The source's look at a process and its host goes on as far as it can: what is missing is a
// finding.
#include "migrate-agent/source/examination.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "migrate-agent/memory/present_pages.h"
#include "migrate-agent/preflight/comparison.h"
#include "src/base/limits.h"

namespace gcr::agent {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr pid_t kNobody = 4'194'303;
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

  fs::path directory_;
  Config config_;
};

TEST_F(Examining, AProcessThatIsNotThereIsOneFinding) {
  EXPECT_THAT(found(kNobody), ElementsAre("no-process"));
}

TEST_F(Examining, MissingProgramsDoNotHideWhatIsWrongWithTheProcess) {
  config_.criu.argv = {(directory_ / "no-criu").string()};
  const auto ids = found(::getpid());
  EXPECT_THAT(ids, AllOf(Contains("criu-missing"), Contains("not-ours")));
}

TEST_F(Examining, ImagesInRoundsNeedAKernelThatTellsOfPages) {
  const pid_t sleeper = ::fork();
  if (sleeper == 0) {
    ::pause();
    ::_exit(0);
  }
  config_.criu.argv = {"python3", GCR_FAKE_CRIU, "9.0.0", "good"};
  const auto blockers = found(sleeper, proto::IMAGE_MODE_ROUNDS);
  EXPECT_THAT(blockers, Contains("no-door"));
  if (!process::can_scan_pages()) {
    EXPECT_THAT(blockers, Contains("no-dirty-tracking"));
  }
  EXPECT_THAT(found(sleeper), Not(Contains("no-dirty-tracking")));
  ::kill(sleeper, SIGKILL);
  ::waitpid(sleeper, nullptr, 0);
}

TEST_F(Examining, AJobOfTooManyProcesses) {
  const pid_t sleeper = ::fork();
  if (sleeper == 0) {
    ::pause();
    ::_exit(0);
  }
  std::vector<pid_t> members(job::kMaxMembers + 1, sleeper);
  EXPECT_THAT(found(sleeper, proto::IMAGE_MODE_AUTO, members), Contains("too-many-processes"));
  members.resize(2);
  EXPECT_THAT(found(sleeper, proto::IMAGE_MODE_AUTO, members), Not(Contains("too-many-processes")));
  ::kill(sleeper, SIGKILL);
  ::waitpid(sleeper, nullptr, 0);
}

TEST_F(Examining, SemaphoresAndQueuesThatMayBeTheJobsAreWarnedAbout) {
  // Objects of this test alone.
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
    const auto is_told = [](const auto& ids) {
      return std::ranges::find(ids, "system-v-stays") != ids.end();
    };
    ::_exit(made && !is_told(before) && is_told(after) ? 0 : 1);
  }
  int status = 0;
  ::waitpid(asker, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(Examining, AProcessThatMayNotBeLookedAt) {
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

TEST_F(Examining, WhatTheAccessTells) {
  const AccessState state{.managed_memory = true,
                          .ipc_memory = true,
                          .foreign_handles = true,
                          .untracked_bytes = 5 << 20};
  preflight::Findings findings(preflight::Side::kSource);
  check_access(state, findings);
  std::vector<std::string> ids;
  for (const proto::Finding& finding : findings.list()) ids.push_back(finding.id());
  EXPECT_THAT(ids, ElementsAre("managed-memory", "ipc-memory", "foreign-handles"));
}

TEST_F(Examining, WhatIsNotTrackedIsSaid) {
  preflight::Findings findings(preflight::Side::kSource);
  check_access({.untracked_bytes = 5 << 20}, findings);
  ASSERT_EQ(findings.list().size(), 1u);
  EXPECT_EQ(findings.list()[0].id(), "untracked-memory");
  EXPECT_THAT(findings.list()[0].found(), HasSubstr("5 MiB"));
}

TEST_F(Examining, MoreBuffersThanAMigrationTakes) {
  preflight::Findings findings(preflight::Side::kSource);
  check_inventory(kMaxBuffers, findings);
  EXPECT_TRUE(findings.list().empty());
  check_inventory(kMaxBuffers + 1, findings);
  ASSERT_EQ(findings.list().size(), 1u);
  EXPECT_EQ(findings.list()[0].id(), "too-many-buffers");
}

}  // namespace
}  // namespace gcr::agent
