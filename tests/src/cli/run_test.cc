// gcr-migrate run: the command gets LD_PRELOAD and no other change. With --output it runs below a
// supervisor.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "src/base/unique_fd.h"
#include "tests/src/cli/process.h"
#include "tests/support/wait_until.h"

namespace gcr::cli::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

class Run : public testing::Test {
 protected:
  // The loader skips a file that is no library with a warning: good enough here.
  Run() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gcr-run-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = pattern;
    library_ = folder_ + "/libgcr-preload.so";
    std::ofstream(library_) << "no library\n";
  }
  ~Run() override { std::filesystem::remove_all(folder_); }

  Finished run_with(const std::vector<std::string>& environment,
                    const std::vector<std::string>& command) {
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

TEST_F(Run, KeepsPreloadedLibraries) {
  const Finished finished = run_with({"GCR_PRELOAD=" + library_, "LD_PRELOAD=/x/a.so:/x/b.so"},
                                     {"/bin/sh", "-c", "echo $LD_PRELOAD"});
  EXPECT_EQ(finished.out, library_ + ":/x/a.so:/x/b.so\n");
}

TEST_F(Run, DoesNotPreloadItTwice) {
  const Finished finished = run_with({"GCR_PRELOAD=" + library_, "LD_PRELOAD=/x/a.so:" + library_},
                                     {"/bin/sh", "-c", "echo $LD_PRELOAD"});
  EXPECT_EQ(finished.out, "/x/a.so:" + library_ + "\n");
}

TEST_F(Run, ArgumentsArriveUnchanged) {
  const Finished finished = run_with({"GCR_PRELOAD=" + library_},
                                     {"/usr/bin/printf", "[%s]", "--help", "--", "", "a b", "{}"});
  EXPECT_EQ(finished.out, "[--help][--][][a b][{}]");
}

TEST_F(Run, SlurmJobRunsThroughTheWrapper) {
  std::ofstream(folder_ + "/gcr-slurm")
      << "#!/bin/sh\nprintf '[%s]' \"$@\"\necho $GCR_CLI\nexit 4\n";
  std::filesystem::permissions(folder_ + "/gcr-slurm", std::filesystem::perms::owner_all);
  const Finished finished =
      run({GCR_CLI, "slurm", "4711", "--to", "node2", "--json"}, {"PATH=" + folder_});
  EXPECT_EQ(finished.exit_status, 4);
  EXPECT_EQ(finished.out, "[migrate][4711][--to][node2][--json]" GCR_CLI "\n");
  const Finished before = run({GCR_CLI, "--ca", "ca.crt", "slurm", "4711"}, {"PATH=" + folder_});
  EXPECT_EQ(before.out, "[migrate][--ca][ca.crt][4711]" GCR_CLI "\n");
}

TEST_F(Run, WithoutTheWrapperASlurmJobCannotMigrate) {
  const Finished finished = run({GCR_CLI, "slurm", "4711"}, {"PATH=" + folder_});
  EXPECT_EQ(finished.exit_status, 127);
  EXPECT_THAT(finished.err, HasSubstr("cannot start gcr-slurm: No such file"));
}

TEST_F(Run, ContainerMovesThroughTheWrapper) {
  std::ofstream(folder_ + "/gcr-container")
      << "#!/bin/sh\nprintf '[%s]' \"$@\"\necho $GCR_CLI\nexit 4\n";
  std::filesystem::permissions(folder_ + "/gcr-container", std::filesystem::perms::owner_all);
  const auto said = [&](std::vector<std::string> words) {
    words.insert(words.begin(), GCR_CLI);
    const Finished finished = run(words, {"PATH=" + folder_});
    EXPECT_EQ(finished.exit_status, 4);
    return finished.out;
  };
  EXPECT_EQ(said({"container", "podman:train", "node1", "node2", "--json"}),
            "[migrate][podman:train][node1][node2][--json]" GCR_CLI "\n");
  EXPECT_EQ(said({"container", "preflight", "podman:train", "node1", "node2"}),
            "[preflight][podman:train][node1][node2]" GCR_CLI "\n");
  EXPECT_EQ(said({"--ca", "ca.crt", "container", "preflight", "podman:train", "preflight", "b"}),
            "[preflight][--ca][ca.crt][podman:train][preflight][b]" GCR_CLI "\n");
  EXPECT_EQ(said({"container", "podman:train", "preflight", "node2"}),
            "[migrate][podman:train][preflight][node2]" GCR_CLI "\n");
}

TEST_F(Run, JobsTakeTurnsThroughTheWrapper) {
  std::ofstream(folder_ + "/gcr-turns")
      << "#!/bin/sh\nprintf '[%s]' \"$@\"\necho $GCR_CLI\nexit 4\n";
  std::filesystem::permissions(folder_ + "/gcr-turns", std::filesystem::perms::owner_all);
  const Finished finished =
      run({GCR_CLI, "--ca", "ca.crt", "turns", "node1", "1", "--turn", "9"}, {"PATH=" + folder_});
  EXPECT_EQ(finished.exit_status, 4);
  EXPECT_EQ(finished.out, "[--ca][ca.crt][node1][1][--turn][9]" GCR_CLI "\n");
}

TEST_F(Run, CommandIsFoundInThePath) {
  const Finished finished =
      run_with({"GCR_PRELOAD=" + library_, "PATH=/usr/bin:/bin"}, {"printf", "found"});
  EXPECT_EQ(finished.out, "found");
}

TEST_F(Run, ExitStatusIsThatOfTheCommand) {
  EXPECT_EQ(run_with({"GCR_PRELOAD=" + library_}, {"/bin/sh", "-c", "exit 42"}).exit_status, 42);
}

TEST_F(Run, MissingCommandIsAnError) {
  const Finished finished = run_with({"GCR_PRELOAD=" + library_}, {"/nonexistent/program"});
  EXPECT_EQ(finished.exit_status, 127);
  EXPECT_THAT(finished.err, HasSubstr("cannot start /nonexistent/program"));
}

TEST_F(Run, UnexecutableCommandIsAnError) {
  EXPECT_EQ(run_with({"GCR_PRELOAD=" + library_}, {library_}).exit_status, 126);
}

TEST_F(Run, MissingLibraryIsNamed) {
  const Finished finished = run_with({"GCR_PRELOAD=/nonexistent/x.so"}, {"/bin/true"});
  EXPECT_EQ(finished.exit_status, 125);
  EXPECT_THAT(finished.err, HasSubstr("/nonexistent/x.so"));
}

TEST_F(Run, LibraryPathUnfitForLdPreloadIsRefused) {
  std::filesystem::create_directory(folder_ + "/a b");
  std::filesystem::copy(library_, folder_ + "/a b");
  const Finished finished =
      run_with({"GCR_PRELOAD=" + folder_ + "/a b/libgcr-preload.so"}, {"/bin/true"});
  EXPECT_EQ(finished.exit_status, 125);
  EXPECT_THAT(finished.err, HasSubstr("space or a colon"));
}

/// A job that runs below a supervisor.
class Supervised : public Run {
 protected:
  std::vector<std::string> words(const std::string& script, bool detach = false) const {
    std::vector<std::string> words = {GCR_CLI, "run", "--output", file_};
    if (detach) words.push_back("--detach");
    for (const std::string& word : {std::string("--"), std::string("/bin/sh"), std::string("-c"),
                                    "cd " + folder_ + "; " + script}) {
      words.push_back(word);
    }
    return words;
  }
  Finished supervise(const std::string& script, bool detach = false) const {
    return run(words(script, detach), environment_);
  }

  static std::string content(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// Without the loader's warnings about the library.
  std::string output() const {
    std::istringstream lines(content(file_));
    std::string all;
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("ERROR: ld.so")) all += line + "\n";
    }
    return all;
  }

  void touch(const std::string& name) const { std::ofstream(folder_ + "/" + name).put('\n'); }

  bool wait_for(const std::string& path, const std::string& text) const {
    return gcr::test::wait_until([&] { return content(path).find(text) != std::string::npos; });
  }

  /// Only init reaps a detached job.
  static bool has_ended(pid_t pid) {
    const std::string stat = content("/proc/" + std::to_string(pid) + "/stat");
    return stat.empty() || stat.find(") Z ") != std::string::npos;
  }

  const std::string file_ = folder_ + "/output";
  const std::vector<std::string> environment_ = {"GCR_PRELOAD=" + library_, "PATH=/usr/bin:/bin"};
};

TEST_F(Supervised, OutputGoesToTheFileAndThePidIsPrinted) {
  const Finished finished = supervise("echo $PPID says; echo complaint >&2; exit 42");
  EXPECT_EQ(finished.exit_status, 42);
  EXPECT_THAT(output(), AllOf(HasSubstr(finished.out.substr(0, finished.out.size() - 1) + " says"),
                              HasSubstr("complaint\n")));
}

TEST_F(Supervised, OutputIsAppended) {
  supervise("echo first");
  supervise("echo second");
  EXPECT_THAT(output(), ContainsRegex("first\n(.|\n)*second\n"));
}

TEST_F(Supervised, JobHasItsOwnSessionAndNoInheritedFiles) {
  const UniqueFd leaked(::open("/dev/null", O_RDONLY));  // without O_CLOEXEC
  const Finished finished = supervise(
      "cut -d' ' -f6,7 /proc/self/stat; readlink /proc/$$/fd/0;"
      "ls /proc/$$/fd; echo $LD_PRELOAD");
  const std::string pid = finished.out.substr(0, finished.out.size() - 1);
  EXPECT_THAT(output(), HasSubstr(pid + " 0\n/dev/null\n"));
  EXPECT_THAT(output(), HasSubstr("\n0\n1\n2\n" + library_ + "\n"));
}

TEST_F(Supervised, IgnoredAndBlockedSignalsAreReset) {
  std::vector<std::string> command = {"/bin/sh", "-c", "trap '' INT QUIT TERM; exec \"$@\"", "sh"};
  const auto supervised = words("grep Sig[BI] /proc/self/status");
  command.insert(command.end(), supervised.begin(), supervised.end());
  run(command, environment_);
  EXPECT_THAT(output(), ContainsRegex("SigBlk:\t0+\nSigIgn:\t[0-9a-f]+0000\n"));
}

TEST_F(Supervised, FileIsReopenedOnSighup) {
  Running job(words("while :; do echo tick; sleep 0.01; done"), environment_);
  ASSERT_TRUE(wait_for(file_, "tick"));
  std::filesystem::rename(file_, file_ + ".1");
  const std::string pid = std::to_string(job.pid());
  ASSERT_EQ(run({"/bin/kill", "-HUP", pid}, {}).exit_status, 0);
  ASSERT_TRUE(wait_for(file_, "tick"));
  const std::string rotated = content(file_ + ".1");
  const std::string before = output();
  ASSERT_TRUE(gcr::test::wait_until([&] { return output().size() > before.size() + 20; }));
  EXPECT_EQ(content(file_ + ".1"), rotated);
  job.signal(SIGTERM);
  EXPECT_EQ(job.finish().exit_status, 128 + SIGTERM);
}

TEST_F(Supervised, FailedReopenKeepsTheFile) {
  Running job(words("while [ ! -e go ]; do sleep 0.01; done; echo done"), environment_);
  ASSERT_TRUE(job.wait_for_output("\n"));
  const std::string kept = folder_ + "/kept";
  ASSERT_TRUE(gcr::test::wait_until([&] { return std::filesystem::exists(file_); }));
  std::filesystem::rename(file_, kept);
  std::filesystem::create_directory(file_);
  job.signal(SIGHUP);
  ASSERT_TRUE(wait_for(kept, "cannot open the output file again: Is a directory"));
  touch("go");
  EXPECT_EQ(job.finish().exit_status, 0);
  EXPECT_THAT(content(kept), HasSubstr("done\n"));
}

TEST_F(Supervised, SignalsReachTheCommandOnce) {
  Running job(words("trap 'echo one' USR1; trap 'echo two; exit 5' USR2; echo ready;"
                    "while :; do sleep 0.01; done"),
              environment_);
  ASSERT_TRUE(wait_for(file_, "ready"));
  job.signal(SIGUSR1);
  ASSERT_TRUE(wait_for(file_, "one"));
  job.signal(SIGUSR2);
  EXPECT_EQ(job.finish().exit_status, 5);
  EXPECT_THAT(output(), HasSubstr("ready\none\ntwo\n"));
}

TEST_F(Supervised, ProcessesThatOutliveTheCommandStayInTheJob) {
  Running job(words("(while [ ! -e go ]; do sleep 0.01; done; "
                    "me=$(exec sh -c 'echo $PPID'); echo parent $(cut -d' ' -f4 /proc/$me/stat)) &"
                    "echo started; exit 3"),
              environment_);
  ASSERT_TRUE(wait_for(file_, "started"));
  touch("go");
  const Finished finished = job.finish();
  EXPECT_EQ(finished.exit_status, 3);
  EXPECT_THAT(output(), HasSubstr("parent " + finished.out));
}

TEST_F(Supervised, ProcessesThatOutliveTheCommandGetSignals) {
  Running job(words("(trap 'echo it too; exit' TERM; echo ready; while :; do sleep 0.01; done) &"
                    "exit 0"),
              environment_);
  ASSERT_TRUE(wait_for(file_, "ready"));
  // The command ends by itself, at an unknown time: until then only it would get the signal.
  ASSERT_TRUE(job.wait_for_output("\n"));
  ASSERT_TRUE(gcr::test::wait_until([&] {
    job.signal(SIGTERM);
    return output().find("it too") != std::string::npos;
  }));
  EXPECT_THAT(job.finish().exit_status, testing::AnyOf(0, 128 + SIGTERM));
}

TEST_F(Supervised, OutputIsCompleteAtTheEndOfTheJob) {
  EXPECT_EQ(supervise("seq 1 200000").exit_status, 0);
  EXPECT_THAT(output(), HasSubstr("\n199999\n200000\n"));
}

TEST_F(Supervised, FullDiskDoesNotStopTheJob) {
  std::filesystem::create_symlink("/dev/full", file_);
  EXPECT_EQ(supervise("seq 1 100000; exit 4").exit_status, 4);
}

TEST_F(Supervised, LostOutputIsReportedOnceThereIsRoom) {
  std::filesystem::create_symlink("/dev/full", file_);
  Running job(words("seq 1 100000; touch lost; "
                    "while [ ! -e go ]; do echo tick; sleep 0.01; done"),
              environment_);
  // More than a pipe holds: some of it was read, and could not be written.
  ASSERT_TRUE(gcr::test::wait_until([&] { return std::filesystem::exists(folder_ + "/lost"); }));
  std::filesystem::remove(file_);
  job.signal(SIGHUP);
  ASSERT_TRUE(wait_for(file_, "tick"));
  touch("go");
  EXPECT_EQ(job.finish().exit_status, 0);
  EXPECT_THAT(output(),
              ContainsRegex("^\ngcr-supervisor: [0-9]+ bytes of output were lost here\n"));
}

TEST_F(Supervised, DetachedJobRunsOn) {
  const Finished finished = supervise("while [ ! -e go ]; do sleep 0.01; done; echo done", true);
  EXPECT_EQ(finished.exit_status, 0);
  const pid_t pid = std::stoi(finished.out);
  EXPECT_FALSE(has_ended(pid));
  touch("go");
  EXPECT_TRUE(wait_for(file_, "done"));
  EXPECT_TRUE(gcr::test::wait_until([&] { return has_ended(pid); }));
}

TEST_F(Supervised, FailedStartIsReportedBeforeDetaching) {
  const std::pair<std::string, int> commands[] = {{"/nonexistent/program", 127}, {library_, 126}};
  for (const auto& [command, status] : commands) {
    const Finished finished =
        run({GCR_CLI, "run", "--output", file_, "--detach", "--", command}, environment_);
    EXPECT_EQ(finished.exit_status, status);
    EXPECT_EQ(finished.out, "");
    EXPECT_THAT(finished.err, HasSubstr("cannot start " + command));
  }
}

TEST_F(Supervised, UnopenableFileIsNamed) {
  const Finished finished =
      run({GCR_CLI, "run", "--output", folder_ + "/no/output", "--", "true"}, environment_);
  EXPECT_EQ(finished.exit_status, 125);
  EXPECT_THAT(finished.err, HasSubstr(folder_ + "/no/output: No such file or directory"));
}

TEST_F(Supervised, DetachingWithoutAFileIsAUsageError) {
  const Finished finished = run({GCR_CLI, "run", "--detach", "--", "true"}, environment_);
  EXPECT_EQ(finished.exit_status, 2);
  EXPECT_THAT(finished.err, HasSubstr("--output"));
}

}  // namespace
}  // namespace gcr::cli::test
