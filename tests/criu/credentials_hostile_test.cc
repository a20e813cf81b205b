// Forged credentials of a thread in CRIU's images gain nothing: the source refuses the images, and
// the destination refuses a process restored from them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/credentials.h"
#include "tests/criu/forge.h"
#include "tests/criu/program.h"
#include "tests/criu/whole_runs.h"

namespace gcr::criu::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class ForgedCredentials : public testing::TestWithParam<const char*> {
 protected:
  ForgedCredentials() { wait_for_progress(file(), {}, 5); }

  fs::path file() const { return directory_.path() / "output"; }
  fs::path images() const { return directory_.make("images"); }

  /// Dumps the program into images() and kills it; returns its credentials.
  google::protobuf::RepeatedPtrField<proto::Credentials> dump_and_kill() {
    const auto report = dump(criu_command(), program_.pid(), images());
    EXPECT_TRUE(report) << report.error().message();
    EXPECT_TRUE(kill_stopped(program_.process()));
    program_.reap();
    google::protobuf::RepeatedPtrField<proto::Credentials> rights;
    if (!report) return rights;
    for (const process::ThreadRights& thread : *report) *rights.Add() = thread.rights;
    return rights;
  }

  Directory directory_;
  Program program_{file(), "count"};
};

TEST_P(ForgedCredentials, AreRefusedAtTheSourceAndTheProgramRunsOn) {
  Command command = criu_command();
  command.argv.insert(command.argv.begin(), {GCR_FORGING_CRIU, GetParam()});
  const Output before = read_output(file());
  const auto report = dump(command, program_.pid(), images());
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), Code::kDataLoss);
  EXPECT_THAT(report.error().message(),
              AllOf(HasSubstr("core-"), HasSubstr("thread "), HasSubstr("in CRIU's image")));
  expect_gapless(wait_for_progress(file(), before, 20));
}

INSTANTIATE_TEST_SUITE_P(Each, ForgedCredentials,
                         testing::Values("uid", "gid", "group", "capability", "bounding",
                                         "no_new_privs", "securebits"),
                         [](const auto& info) { return std::string(info.param); });

class Restored : public ForgedCredentials {};

TEST_F(Restored, ProgramKeepsItsCredentials) {
  const auto told = dump_and_kill();
  EXPECT_EQ(told.size(), 7);  // the counting threads, and the first
  auto tree = restore(criu_command(), images());
  ASSERT_TRUE(tree) << tree.error().message();
  const Status checked = process::check_restored_credentials(tree->init().pid(), told);
  EXPECT_TRUE(checked) << checked.error().message();
}

TEST_F(Restored, ForgedUserIsRefusedBeforeItRuns) {
  const auto told = dump_and_kill();
  const Output before = read_output(file());
  forge_credentials(images(), "uid");
  auto tree = restore(criu_command(), images());
  ASSERT_TRUE(tree) << tree.error().message();
  // CRIU itself trusts its images.
  EXPECT_THAT(procfs::status_field(std::to_string(tree->pid()), "Uid"), HasSubstr("4242"));
  const Status checked = process::check_restored_credentials(tree->init().pid(), told);
  ASSERT_FALSE(checked);
  EXPECT_THAT(checked.error().message(),
              AllOf(HasSubstr("uids are 4242 4242 4242 4242 as restored"), HasSubstr("0 0 0 0")));
  EXPECT_EQ(read_output(file()).lines, before.lines);
}

TEST_F(Restored, MissingAndUnknownThreadsAreRefused) {
  const auto told = dump_and_kill();
  auto tree = restore(criu_command(), images());
  ASSERT_TRUE(tree) << tree.error().message();
  auto more = told;
  *more.Add() = told[0];
  more[more.size() - 1].set_thread(999'999);
  EXPECT_THAT(process::check_restored_credentials(tree->init().pid(), more).error().message(),
              HasSubstr("thread 999999 is reported by the source and was not restored"));
  auto fewer = told;
  fewer.RemoveLast();
  EXPECT_THAT(process::check_restored_credentials(tree->init().pid(), fewer).error().message(),
              HasSubstr("was restored and is not reported by the source"));
  auto twice = told;
  *twice.Add() = told[0];
  EXPECT_THAT(process::check_restored_credentials(tree->init().pid(), twice).error().message(),
              HasSubstr("twice"));
  EXPECT_FALSE(process::check_restored_credentials(tree->init().pid(), {}));
}

}  // namespace
}  // namespace gcr::criu::test
