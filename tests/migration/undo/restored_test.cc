// The restored process at the destination when its worker dies, before its release and after.
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "migrate-agent/criu/launch/helpers.h"
#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/migration/undo/recovery.h"
#include "tests/criu/program.h"
#include "tests/criu/whole_runs.h"
#include "tests/migration/undo/processes.h"

namespace gcr::undo::test {
namespace {

using criu::test::read_output;
using criu::test::wait_for_progress;

/// A program that was dumped and killed; its images exist.
class Restored : public testing::Test {
 protected:
  void SetUp() override {
    criu::test::Program original(file(), "count");
    wait_for_progress(file(), {}, 5);
    ASSERT_TRUE(
        criu::dump({{criu_program()}, built(GCR_REAPER_PATH)}, original.pid(), images_.path()));
    ASSERT_TRUE(criu::kill_stopped(original.process()));
    dumped_ = read_output(file());
  }

  void TearDown() override {
    if (process_.pid() != 0) {
      EXPECT_TRUE(destroy_restored(restored(), {}));
    }
    EXPECT_THAT(living(), testing::IsEmpty());
  }

  std::filesystem::path file() const { return directory_.path() / "output"; }

  std::vector<std::string> arguments(const std::string& stop) const {
    return {"restore", criu_program(), built(GCR_REAPER_PATH), images_.path(), stop};
  }

  /// The worker released it and was killed.
  void release() {
    Worker worker(arguments("never"));
    ASSERT_TRUE(worker.wait_for("released")) << worker.last();
    worker.kill();
    process_ = worker.named().at(0);
    init_ = worker.named().at(1);
  }

  journal::Restored restored() const {
    journal::Restored restored;
    *restored.add_members() = process_;
    *restored.mutable_init() = init_;
    return restored;
  }

  char state() const { return procfs::state(std::to_string(process_.pid())); }
  std::set<pid_t> living() const { return living_descendants({}); }

  /// Waits until only `count` processes exist below this process; a failure after ten seconds.
  void expect_living(std::size_t count) const {
    for (int i = 0; living().size() != count && i < 1000; ++i) ::poll(nullptr, 0, 10);
    EXPECT_EQ(living().size(), count);
  }

  Directory directory_;
  Directory images_;
  criu::test::Output dumped_;
  journal::ProcessId process_;
  journal::ProcessId init_;
};

TEST_F(Restored, StaysStoppedIfItsWorkerDiesUntilResumed) {
  release();
  if (HasFatalFailure()) return;
  EXPECT_EQ(state(), 'T');
  EXPECT_EQ(read_output(file()).lines, dumped_.lines);
  ASSERT_TRUE(resume_restored(restored(), {}));
  criu::test::expect_gapless(wait_for_progress(file(), dumped_, 5));
  ASSERT_TRUE(resume_restored(restored(), {})) << "a second call succeeds";
  criu::test::expect_gapless(wait_for_progress(file(), read_output(file()), 5));
  ASSERT_TRUE(destroy_restored(restored(), {}));
}

/// The restored process is dumped again, out of its own namespaces, by a worker that is killed.
TEST_F(Restored, StaysAsItWasIfTheDumpingWorkerDies) {
  release();
  if (HasFatalFailure()) return;
  std::mt19937 random(testing::UnitTest::GetInstance()->random_seed());
  for (int i = 0; i < 10 && !HasFailure(); ++i) {
    ASSERT_TRUE(resume_restored(restored(), {}));
    wait_for_progress(file(), read_output(file()), 5);
    const Directory scratch;
    Worker worker({"dump", std::to_string(process_.pid()), criu_program(), built(GCR_REAPER_PATH),
                   scratch.path(), i == 0 ? "prepared" : "never"});
    ASSERT_TRUE(worker.wait_for("prepared"));
    const auto delay = static_cast<useconds_t>(i == 0 ? 0 : random() % 60000);
    ::usleep(delay);
    worker.kill();
    SCOPED_TRACE("killed after " + std::to_string(delay) + " µs");
    const Status waited = criu::wait_for_helpers(scratch.path(), std::chrono::seconds(60));
    EXPECT_TRUE(waited) << waited.error().message();
    EXPECT_THAT(living(), testing::UnorderedElementsAre(process_.pid(), init_.pid()));
  }
  ASSERT_TRUE(resume_restored(restored(), {}));
  criu::test::expect_gapless(wait_for_progress(file(), read_output(file()), 5));
}

TEST_F(Restored, DestroyEndsEveryProcessOfItsNamespace) {
  release();
  if (HasFatalFailure()) return;
  ASSERT_TRUE(destroy_restored(restored(), {}));
  EXPECT_THAT(living(), testing::IsEmpty());
  EXPECT_TRUE(destroy_restored(restored(), {})) << "a second call succeeds";
  const Status resumed = resume_restored(restored(), {});
  ASSERT_FALSE(resumed);
  EXPECT_EQ(resumed.error().code(), Code::kNotFound) << resumed.error().message();
}

TEST_F(Restored, EndsIfItsWorkerDiesBeforeTheRelease) {
  Worker worker(arguments("restored"));
  ASSERT_TRUE(worker.wait_for("restored")) << worker.last();
  worker.kill();
  expect_living(0);
  EXPECT_EQ(read_output(file()).lines, dumped_.lines);
}

TEST_F(Restored, EndsIfItsWorkerDiesDuringTheRestore) {
  std::mt19937 random(testing::UnitTest::GetInstance()->random_seed());
  for (int i = 0; i < 10 && !HasFailure(); ++i) {
    Worker worker(arguments("restored"));
    ASSERT_TRUE(worker.wait_for("restoring"));
    const auto delay = static_cast<useconds_t>(random() % 150000);
    ::usleep(delay);
    worker.kill();
    SCOPED_TRACE("killed after " + std::to_string(delay) + " µs, " + worker.last());
    expect_living(0);
    EXPECT_EQ(read_output(file()).lines, dumped_.lines);
  }
}

}  // namespace
}  // namespace gcr::undo::test
