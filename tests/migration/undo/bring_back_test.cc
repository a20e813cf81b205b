// A worker is killed at every step at which it can leave a process; then the process resumes, and
// finds every word of its VRAM unchanged.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>

#include <random>

#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/gpu/access/door/door.h"
#include "migrate-agent/gpu/device/cuda/driver.h"
#include "migrate-agent/gpu/keeper/keeper.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/migration/undo/recovery.h"
#include "tests/migration/undo/processes.h"

namespace gcr::undo {

void PrintTo(Found found, std::ostream* out) {
  *out << (found == Found::kGone ? "gone" : "running");
}

namespace test {
namespace {

constexpr char kNever[] = "never";

class BringBack : public testing::Test {
 protected:
  std::unique_ptr<Worker> start_worker(const std::string& stop) {
    return std::make_unique<Worker>(std::vector<std::string>{"move", std::to_string(program_.pid()),
                                                             stop, built(GCR_KEEPER_PATH),
                                                             criu_program(), scratch_.path()});
  }

  void TearDown() override {
    worker_->kill();
    end_keeper();
  }

  /// Takes the program to a step, then kills the worker.
  void leave_at(const std::string& step) {
    worker_ = start_worker(step);
    ASSERT_TRUE(worker_->wait_for(step)) << "the worker reached: " << worker_->last();
    worker_->kill();
  }

  Lost lost() const {
    return {.members = {program_.id()},
            .keeper = worker_->keeper(),
            .detaching = true,
            .scratch = scratch_.path(),
            .group = {},
            .homes = {}};
  }

  void end_keeper() {
    if (worker_->keeper()) {
      ASSERT_TRUE(keeper::end_keeper(*worker_->keeper()));
    }
  }

  void expect_brought_back(const WorkerState* worker_state = nullptr) {
    const Result<Found> found = bring_back(lost(), worker_state);
    ASSERT_TRUE(found) << found.error().message();
    EXPECT_EQ(*found, Found::kRunning);
    program_.expect_progress();
    end_keeper();
    // Processes that have closed all files, CRIU among them, may take a moment to end.
    const std::set<pid_t> alone{program_.pid()};
    for (int i = 0; i < 1000 && living_descendants(alone) != alone; ++i) ::usleep(10'000);
    EXPECT_EQ(living_descendants(alone), alone);
  }

  Directory directory_;
  Directory scratch_;
  Program program_{directory_.path(), {}};
  std::unique_ptr<Worker> worker_;
};

class BringBackFrom : public BringBack, public testing::WithParamInterface<const char*> {};

TEST_P(BringBackFrom, ProgramResumesWithItsVramAndNoHelperRemains) {
  leave_at(GetParam());
  if (HasFatalFailure()) return;
  expect_brought_back();
}

TEST_P(BringBackFrom, ProgramResumesWhenItsDoorIsAlreadyOpen) {
  leave_at(GetParam());
  if (HasFatalFailure()) return;
  auto door = gpu::Door::open(program_.pid());
  ASSERT_TRUE(door) << door.error().message();
  const WorkerState worker_state{.accesses = {{program_.pid(), &*door}},
                                 .driver = device::cuda::load().value(),
                                 .vram = [this] { return keeper::take_from(*worker_->keeper()); },
                                 .gated = true,
                                 .detaching = true};
  expect_brought_back(&worker_state);
}

INSTANTIATE_TEST_SUITE_P(Steps, BringBackFrom,
                         testing::Values("prepared", "keeper", "gated", "armed", "detached",
                                         "locked", "checkpointed", "dropped", "dumped", "resumed",
                                         "restored", "unlocked", "offered", "attached", "done"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(BringBack, RunningProgramIsLeftAlone) {
  leave_at("done");
  ASSERT_TRUE(bring_back(lost()));
  expect_brought_back();
}

TEST_F(BringBack, ProgramResumesAfterAKillOfItsWorkerAtAnyTime) {
  using Clock = std::chrono::steady_clock;
  worker_ = start_worker(kNever);
  ASSERT_TRUE(worker_->wait_for("prepared"));
  const auto begun = Clock::now();
  ASSERT_TRUE(worker_->wait_for("done"));
  const auto whole = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begun);
  worker_->kill();
  expect_brought_back();
  std::mt19937 random(testing::UnitTest::GetInstance()->random_seed());
  const char* asked = std::getenv("GCR_TEST_KILLS");
  const int kills = asked != nullptr ? std::atoi(asked) : 15;
  std::map<std::string, int> reached;
  for (int i = 0; i < kills && !HasFailure(); ++i) {
    const auto delay = std::chrono::microseconds(random() % (whole.count() + 1));
    worker_ = start_worker(kNever);
    const bool while_it_starts = i % 4 == 0;
    ASSERT_TRUE(while_it_starts || worker_->wait_for("prepared"));
    ::usleep(static_cast<useconds_t>(delay.count()));
    worker_->kill();
    ++reached[worker_->last().substr(0, worker_->last().find(' '))];
    SCOPED_TRACE("killed after " + std::to_string(delay.count()) + " µs, after " + worker_->last());
    expect_brought_back();
  }
  for (const auto& [step, count] : reached) {
    std::cout << "killed after " << (step.empty() ? "nothing" : step) << ": " << count << "\n";
  }
}

TEST_F(BringBack, ProgramResumesIfItsWorkerIsKilledInTheDump) {
  std::mt19937 random(testing::UnitTest::GetInstance()->random_seed());
  for (int i = 0; i < 10 && !HasFailure(); ++i) {
    worker_ = start_worker(kNever);
    ASSERT_TRUE(worker_->wait_for("dropped"));
    const auto delay = static_cast<useconds_t>(random() % 60000);
    ::usleep(delay);
    worker_->kill();
    SCOPED_TRACE("killed " + std::to_string(delay) + " µs into the dump");
    expect_brought_back();
  }
}

TEST_F(BringBack, KilledRecoveryIsRepeated) {
  std::mt19937 random(testing::UnitTest::GetInstance()->random_seed());
  for (int i = 0; i < 5 && !HasFailure(); ++i) {
    leave_at("dumped");
    if (HasFatalFailure()) return;
    const std::vector<std::string> ids{
        std::to_string(program_.id().pid()), std::to_string(program_.id().start_time()),
        std::to_string(worker_->keeper()->pid()), std::to_string(worker_->keeper()->start_time())};
    Worker recovery({"recover", ids[0], ids[1], ids[2], ids[3], scratch_.path()});
    ASSERT_TRUE(recovery.wait_for("begun"));
    ::usleep(static_cast<useconds_t>(random() % 100000));
    recovery.kill();
    expect_brought_back();
  }
}

TEST_F(BringBack, EndedProgramIsReportedAsGone) {
  leave_at("dumped");
  if (HasFatalFailure()) return;
  const Lost before = lost();
  program_.kill();
  const Result<Found> found = bring_back(before);
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_EQ(*found, Found::kGone);
  end_keeper();
}

TEST_F(BringBack, LossOfVramIsReportedWithoutTheKeeper) {
  leave_at("detached");
  if (HasFatalFailure()) return;
  end_keeper();
  const Result<Found> found = bring_back(lost());
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), Code::kDataLoss) << found.error().message();
}

TEST_F(BringBack, StopBeforeTheDetachIsTheUsers) {
  worker_ = start_worker("prepared");
  ASSERT_TRUE(worker_->wait_for("prepared"));
  worker_->kill();
  ASSERT_EQ(::kill(program_.pid(), SIGSTOP), 0);
  ASSERT_TRUE(procfs::wait_until_stopped(program_.pid()));
  Lost early = lost();
  early.detaching = false;
  const Result<Found> found = bring_back(early);
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_EQ(procfs::state(std::to_string(program_.pid())), 'T');
  ::kill(program_.pid(), SIGCONT);
  program_.expect_progress();
}

TEST_F(BringBack, RecoveryWaitsForAnotherAgentAtTheDoor) {
  leave_at("gated");
  if (HasFatalFailure()) return;
  {
    const auto door = gpu::Door::open(program_.pid());
    ASSERT_TRUE(door);
    const Result<Found> found = bring_back(lost());
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code(), Code::kUnavailable) << found.error().message();
  }
  expect_brought_back();
}

TEST_F(BringBack, StoppedProcessIsKilledAfterTheCommit) {
  leave_at("dumped");
  if (HasFatalFailure()) return;
  const journal::ProcessId id = program_.id();
  ASSERT_TRUE(end_stopped({id}, {}));
  EXPECT_EQ(procfs::state(std::to_string(id.pid())), 'Z');
  program_.kill();
  EXPECT_TRUE(end_stopped({id}, {})) << "a second call succeeds";
  end_keeper();
}

TEST_F(BringBack, AllLivingMembersResume) {
  leave_at("gated");
  if (HasFatalFailure()) return;
  const Directory elsewhere;
  Program second(elsewhere.path(), {});
  Worker worker({"move", std::to_string(second.pid()), "gated", built(GCR_KEEPER_PATH),
                 criu_program(), elsewhere.path()});
  ASSERT_TRUE(worker.wait_for("gated")) << worker.last();
  worker.kill();
  Lost all = lost();
  all.members.push_back(all.members[0]);
  all.members[1].set_start_time(all.members[1].start_time() - 1);
  all.members.push_back(second.id());
  const Result<Found> found = bring_back(all);
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_EQ(*found, Found::kRunning);
  second.expect_progress();
  second.kill();
  expect_brought_back();
}

TEST_F(BringBack, ReusedPidIsLeftAlone) {
  leave_at("gated");
  if (HasFatalFailure()) return;
  Lost other = lost();
  other.members[0].set_start_time(other.members[0].start_time() - 1);
  const Result<Found> found = bring_back(other);
  ASSERT_TRUE(found);
  EXPECT_EQ(*found, Found::kGone);
  EXPECT_TRUE(end_stopped(other.members, {}));
  expect_brought_back();
}

/// A program that was started without the library, which only the driver can unlock.
class WithoutLibrary : public testing::Test {
 protected:
  void expect_brought_back(pid_t driver_alone) {
    const Lost lost{.members = {program_.id()},
                    .keeper = {},
                    .detaching = true,
                    .scratch = {},
                    .group = {},
                    .homes = {},
                    .driver_alone = driver_alone};
    for (int time = 0; time < 2; ++time) {
      const Result<Found> found = bring_back(lost);
      ASSERT_TRUE(found) << found.error().message();
      EXPECT_EQ(*found, Found::kRunning);
      program_.expect_progress();
    }
  }
  pid_t pid() const { return program_.pid(); }

  Directory directory_;
  Program program_{directory_.path(), {.preload = false}};
  std::unique_ptr<device::Control> control_ = device::cuda::load().value()->control(pid());
};

constexpr pid_t kNotKnown = -1;

TEST_F(WithoutLibrary, LockedProcessIsUnlocked) {
  for (const pid_t recorded : {pid(), kNotKnown}) {
    ASSERT_TRUE(control_->lock(std::chrono::seconds(10)));
    expect_brought_back(recorded);
  }
}

TEST_F(WithoutLibrary, StoppedProcessIsRestoredAndUnlocked) {
  for (const pid_t recorded : {pid(), kNotKnown}) {
    ASSERT_TRUE(control_->lock(std::chrono::seconds(10)));
    ASSERT_TRUE(control_->checkpoint());
    ASSERT_EQ(::kill(pid(), SIGSTOP), 0);
    ASSERT_TRUE(procfs::wait_until_stopped(pid()));
    expect_brought_back(recorded);
  }
}

TEST_F(WithoutLibrary, ProcessWithoutCudaIsOnlyContinued) {
  const pid_t sleeper = ::fork();
  if (sleeper == 0) {
    ::execl("/bin/sleep", "sleep", "1000", nullptr);
    ::_exit(127);
  }
  for (const pid_t recorded : {sleeper, kNotKnown}) {
    const Result<Found> found = bring_back({.members = {identify(sleeper)},
                                            .keeper = {},
                                            .detaching = true,
                                            .scratch = {},
                                            .group = {},
                                            .homes = {},
                                            .driver_alone = recorded});
    ASSERT_TRUE(found) << found.error().message();
    EXPECT_EQ(*found, Found::kRunning);
  }
  ::kill(sleeper, SIGKILL);
  ::waitpid(sleeper, nullptr, 0);
}

}  // namespace
}  // namespace test
}  // namespace gcr::undo

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  gcr::undo::test::adopt_orphans();
  return RUN_ALL_TESTS();
}
