// Slurm jobs on this host: which of them preflight accepts, which processes join them, and the
// content of their folders. gcr-slurm-adopt is the real one, the Slurm library a fake.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <future>
#include <thread>
#include <vector>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/preflight/compare/comparison.h"
#include "migrate-agent/process/slurm/folder.h"

namespace gcr::slurm {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr JobId kJob = 12;
constexpr uid_t kUser = 4711;

class Slurm : public testing::Test {
 protected:
  Slurm() {
    std::string path = "/tmp/gcr-slurm-test-XXXXXX";
    if (::mkdtemp(path.data()) != nullptr) directory_ = path;
    settings_.node = "node1";
    settings_.spool = directory_ / "spool";
    settings_.library = GCR_FAKE_SLURM;
    settings_.folder = directory_ / "jobs";
    settings_.adopter = GCR_SLURM_ADOPT;
    fs::create_directories(settings_.spool);
    std::ofstream(step()) << kUser << "\n";
  }
  ~Slurm() override { fs::remove_all(directory_); }

  fs::path step() const { return settings_.spool / "node1_12"; }

  std::string found_of(JobId job, uid_t user) const {
    worker::Config config;
    config.criu.argv = {"/no/criu"};
    config.slurm = settings_;
    proto::PreflightRequest request;
    request.set_slurm_job(job);
    request.add_members()->set_uid(user);
    findings::Findings findings(findings::Side::kDestination);
    preflight::compare_hosts(request, {}, config, findings);
    std::string text;
    for (const proto::Finding& finding : findings.list()) {
      if (finding.id() == "slurm-job") text += finding.found();
    }
    return text;
  }

  fs::path directory_;
  Settings settings_;
};

TEST_F(Slurm, RunningJobOfTheUserIsNoFinding) {
  EXPECT_EQ(found_of(kJob, kUser), "");
  EXPECT_EQ(found_of(0, kUser), "") << "no job was named";
}

TEST_F(Slurm, JobOfAnotherUserIsAFinding) {
  EXPECT_EQ(found_of(kJob, 1), "Slurm job 12 belongs to user 4711, a process to user 1");
}

TEST_F(Slurm, JobNotRunningHereIsAFinding) {
  EXPECT_EQ(found_of(kJob + 1, kUser), "job 13 has no extern step on node node1");
}

TEST_F(Slurm, StartingJobIsNoFinding) {
  fs::rename(step(), directory_ / "later");
  const auto started = std::async(std::launch::async, [this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    fs::rename(directory_ / "later", step());
  });
  EXPECT_EQ(found_of(kJob, kUser), "");
}

TEST_F(Slurm, HostWithoutSlurmIsAFinding) {
  settings_ = {};
  EXPECT_THAT(found_of(kJob, kUser), HasSubstr("has no slurm.node"));
}

TEST_F(Slurm, WrongLibraryIsAFinding) {
  settings_.library = "/lib/x86_64-linux-gnu/libm.so.6";
  EXPECT_THAT(found_of(kJob, kUser), HasSubstr("cannot use Slurm's library"));
}

TEST_F(Slurm, EveryProcessJoinsTheStep) {
  const std::vector<pid_t> processes{::getpid(), ::getppid()};
  ASSERT_TRUE(join_extern_step(settings_, kJob, kUser, processes));
  EXPECT_EQ(procfs::read_text(step()),
            "4711\n" + std::to_string(::getpid()) + "\n" + std::to_string(::getppid()) + "\n");
}

TEST_F(Slurm, ForeignOrEndedJobIsNotJoined) {
  const std::vector<pid_t> processes{::getpid()};
  EXPECT_EQ(join_extern_step(settings_, kJob, 1, processes).error().code(), Code::kNotFound);
  EXPECT_EQ(procfs::read_text(step()), "4711\n");
  fs::remove(step());
  EXPECT_EQ(join_extern_step(settings_, kJob, kUser, processes).error().code(), Code::kNotFound);
}

TEST_F(Slurm, EndedProcessIsNoError) {
  constexpr pid_t kRefused = 4'000'001;  // by the fake, and there is no such process
  EXPECT_TRUE(join_extern_step(settings_, kJob, kUser, std::vector<pid_t>{kRefused}));
}

TEST_F(Slurm, NotesAreReadableAndWrittenAtomically) {
  ASSERT_TRUE(note_pid(settings_, kJob, 17));
  ASSERT_TRUE(note_moved(settings_, kJob, 13));
  const fs::path folder = settings_.folder / "12";
  EXPECT_EQ(procfs::read_text(folder / "pid"), "17\n");
  EXPECT_EQ(procfs::read_text(folder / "moved"), "13\n");
  EXPECT_EQ(fs::status(folder).permissions(), fs::perms(0755));
  EXPECT_EQ(fs::status(folder / "pid").permissions(), fs::perms(0644));
}

TEST_F(Slurm, ExistingStatusIsNotOverwritten) {
  ASSERT_TRUE(note_lost(settings_, kJob));
  EXPECT_EQ(procfs::read_text(settings_.folder / "12" / "status"), "9\n");
  std::ofstream(settings_.folder / "12" / "status") << "256\n";
  ASSERT_TRUE(note_lost(settings_, kJob));
  EXPECT_EQ(procfs::read_text(settings_.folder / "12" / "status"), "256\n");
}

TEST_F(Slurm, FoldersOfEndedJobsAreRemoved) {
  ASSERT_TRUE(note_pid(settings_, 7, 17));
  ASSERT_TRUE(note_pid(settings_, 8, 17));
  std::ofstream(settings_.spool / "node1_8.4294967292") << "";
  ASSERT_TRUE(note_pid(settings_, kJob, 17));
  EXPECT_FALSE(fs::exists(settings_.folder / "7"));
  EXPECT_TRUE(fs::exists(settings_.folder / "8")) << "it runs";
}

TEST(SlurmGroups, OnlyThoseOfSlurmdNameAStep) {
  const Step batch{12, "batch"};
  EXPECT_EQ(step_of_group("/slurm_node1/uid_4711/job_12/step_batch/task_0"), batch);
  EXPECT_EQ(step_of_group("/slurm/uid_4711/job_12/step_batch"), batch);
  EXPECT_EQ(step_of_group("/system.slice/slurmstepd.scope/job_12/step_batch/user/task_0"), batch);
  EXPECT_EQ(step_of_group("/system.slice/node1_slurmstepd.scope/job_12/step_extern"),
            (Step{12, "extern"}));
  for (const char* other :
       {"/", "/user.slice/user-4711.slice/slurm/uid_4711/job_12/step_batch", "/slurm/uid_4711",
        "/slurm/uid_4711/job_0/step_0", "/slurm/uid_4711/job_9999999999/step_0"}) {
    EXPECT_FALSE(step_of_group(other)) << other;
  }
}

}  // namespace
}  // namespace gcr::slurm
