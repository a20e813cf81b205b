// gcr-migrate run: the command gets LD_PRELOAD and nothing else, and everything that is its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "tests/cli/process.h"

namespace gcr::cli::test {
namespace {

using testing::HasSubstr;

class Run : public testing::Test {
 protected:
  // The loader refuses a file that is no library with a warning and goes on: good enough here.
  Run() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gcr-run-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = pattern;
    library_ = folder_ + "/libgcr-preload.so";
    std::ofstream(library_) << "no library\n";
  }
  ~Run() override { std::filesystem::remove_all(folder_); }

  Finished run_with(std::vector<std::string> environment, const std::vector<std::string>& command) {
    std::vector<std::string> words = {GCR_CLI, "run", "--"};
    words.insert(words.end(), command.begin(), command.end());
    return run(words, environment);
  }

  std::string folder_;
  std::string library_;
};

TEST_F(Run, SetsLdPreloadAndNothingElse) {
  const std::string setting = "GCR_PRELOAD=" + library_;
  const Finished finished = run_with({"A=1", setting, "Z=2"}, {"/usr/bin/env"});
  EXPECT_EQ(finished.exit_status, 0);
  EXPECT_EQ(finished.out, "A=1\n" + setting + "\nZ=2\nLD_PRELOAD=" + library_ + "\n");
}

TEST_F(Run, KeepsWhatIsPreloadedAlready) {
  const Finished finished = run_with({"GCR_PRELOAD=" + library_, "LD_PRELOAD=/x/a.so:/x/b.so"},
                                     {"/bin/sh", "-c", "echo $LD_PRELOAD"});
  EXPECT_EQ(finished.out, library_ + ":/x/a.so:/x/b.so\n");
}

TEST_F(Run, DoesNotPreloadItTwice) {
  const Finished finished = run_with({"GCR_PRELOAD=" + library_, "LD_PRELOAD=/x/a.so:" + library_},
                                     {"/bin/sh", "-c", "echo $LD_PRELOAD"});
  EXPECT_EQ(finished.out, "/x/a.so:" + library_ + "\n");
}

TEST_F(Run, ArgumentsArriveAsTheyAre) {
  const Finished finished = run_with({"GCR_PRELOAD=" + library_},
                                     {"/usr/bin/printf", "[%s]", "--help", "--", "", "a b", "{}"});
  EXPECT_EQ(finished.out, "[--help][--][][a b][{}]");
}

TEST_F(Run, CommandIsFoundInThePath) {
  const Finished finished =
      run_with({"GCR_PRELOAD=" + library_, "PATH=/usr/bin:/bin"}, {"printf", "found"});
  EXPECT_EQ(finished.out, "found");
}

TEST_F(Run, ExitStatusIsTheCommands) {
  EXPECT_EQ(run_with({"GCR_PRELOAD=" + library_}, {"/bin/sh", "-c", "exit 42"}).exit_status, 42);
}

TEST_F(Run, CommandThatIsNotThere) {
  const Finished finished = run_with({"GCR_PRELOAD=" + library_}, {"/nonexistent/program"});
  EXPECT_EQ(finished.exit_status, 127);
  EXPECT_THAT(finished.err, HasSubstr("cannot start /nonexistent/program"));
}

TEST_F(Run, CommandThatIsNoProgram) {
  EXPECT_EQ(run_with({"GCR_PRELOAD=" + library_}, {library_}).exit_status, 126);
}

TEST_F(Run, LibraryThatIsNotThereIsNamed) {
  const Finished finished = run_with({"GCR_PRELOAD=/nonexistent/x.so"}, {"/bin/true"});
  EXPECT_EQ(finished.exit_status, 125);
  EXPECT_THAT(finished.err, HasSubstr("/nonexistent/x.so"));
}

TEST_F(Run, LibraryInAFolderThatLdPreloadCannotNameIsRefused) {
  std::filesystem::create_directory(folder_ + "/a b");
  std::filesystem::copy(library_, folder_ + "/a b");
  const Finished finished =
      run_with({"GCR_PRELOAD=" + folder_ + "/a b/libgcr-preload.so"}, {"/bin/true"});
  EXPECT_EQ(finished.exit_status, 125);
  EXPECT_THAT(finished.err, HasSubstr("space or a colon"));
}

}  // namespace
}  // namespace gcr::cli::test
