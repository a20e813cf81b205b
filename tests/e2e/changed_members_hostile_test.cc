// Members that change after they were allowed and examined: an operator who may move only one
// user's processes orders a checkpoint, and meanwhile a member executes another user's setuid
// program, whose memory must not be stored. And members that leave the namespaces in which they
// were examined.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uid_t kVictim = 71'002;
constexpr char kSecret[] = "what only the victim may read";

/// A job in its own directory, with a shell that runs a command on a cue.
class ChangedMembers : public testing::Test {
 protected:
  ChangedMembers() {
    std::string path = "/dev/shm/gcr-changed-XXXXXX";
    if (::mkdtemp(path.data()) != nullptr) directory_ = path;
    fs::permissions(directory_, fs::perms(0711));
  }
  ~ChangedMembers() override {
    job_.reset();
    fs::remove_all(directory_);
  }

  std::string cue() const { return directory_ / "cue"; }

  /// `does`: what the shell of one member, which begins with the user's rights, runs on its cue. It
  /// prints a line when that is done.
  std::vector<std::string> job_command(const std::string& does) const {
    const std::string script = joined(counter_command(hosts_, 32 * kMiB)) + "& (while [ ! -e " +
                               cue() + " ]; do sleep 0.02; done\n" + does + ") & wait";
    return {"sh", "-c", script};
  }

  void start(const std::vector<std::string>& command) {
    job_.emplace(hosts_.start_app(Host::kA, command));
    ASSERT_TRUE(job_->wait_for_lines(1)) << job_->output();
    ASSERT_EQ(ask_counter(client_, hosts_, Host::kA), kCounterFirst);
  }

  void give_cue() const {
    std::ofstream(cue()).put('1');
    ASSERT_TRUE(job_->wait_for_lines(2)) << job_->output();
  }

  /// The cue is given with the gate closed and the GPU's state saved: only the checks after the
  /// members are stopped follow.
  void give_cue_before_the_dump() const {
    std::ofstream(hosts_.directory(Host::kA) + "/faults")
        << "source.locked run touch " << cue() << "; while ! grep -q changed "
        << job_->output_path() << "; do sleep 0.02; done\n";
  }

  void expect_progress() {
    EXPECT_EQ(ask_counter(client_, hosts_, Host::kA), kCounterFirst + 1);
    EXPECT_TRUE(counter_is_intact(client_, hosts_, Host::kA));
  }

  fs::path directory_;
  TwoHosts hosts_{{"--fault-points", "true"}};
  UdpClient client_{hosts_.variable("NS", Host::kA)};
  std::optional<App> job_;
};

class StolenMemory : public ChangedMembers {
 protected:
  StolenMemory() {
    const std::string config = hosts_.variable("CONFIG", Host::kA);
    const std::string before = read_file(config);
    std::ofstream(config) << "operators = [{name = \"*\", users = [\"root\"]}]\n" << before;
    hosts_.stop_agent(Host::kA);
    hosts_.start_agent(Host::kA);
    for (const fs::path& folder : {store(), kept()}) {
      fs::create_directory(folder);
      fs::permissions(folder, fs::perms(0700));
    }
    std::ofstream(directory_ / "secret") << kSecret;
    fs::copy_file("/usr/bin/python3", program());
    EXPECT_EQ(::chown(program().c_str(), kVictim, kVictim), 0);
    fs::permissions(program(), fs::perms(04755));
    EXPECT_EQ(::chown((directory_ / "secret").c_str(), kVictim, kVictim), 0);
    fs::permissions(directory_ / "secret", fs::perms(0600));
  }

  fs::path store() const { return directory_ / "store"; }
  fs::path kept() const { return directory_ / "kept"; }
  fs::path program() const { return directory_ / "setuid"; }

  /// The setuid program, which keeps much of the secret in its memory.
  std::string steal() const {
    return program().string() + " -I -S -c 'import time; secret = open(\"" +
           (directory_ / "secret").string() +
           "\").read() * 200000; print(\"changed\", flush=True); time.sleep(1000)'";
  }

  BackgroundCommand checkpoint(const std::vector<std::string>& options = {}) const {
    std::vector<std::string> words = {"checkpoint", std::to_string(job_->pid()), store()};
    words.insert(words.end(), options.begin(), options.end());
    return BackgroundCommand(hosts_.order_command(Host::kA, words));
  }

  /// Links every file that is in the directory now, so that its removal loses nothing.
  void keep_packs() const {
    std::error_code ignored;
    for (fs::directory_iterator at(store() / "packs", ignored), end; !ignored && at != end;
         at.increment(ignored)) {
      fs::create_hard_link(at->path(), kept() / at->path().filename(), ignored);
      ignored.clear();
    }
  }

  std::vector<std::string> files_with_secret() const {
    std::vector<std::string> found;
    for (const fs::path& folder : {store(), kept()}) {
      for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        if (entry.is_regular_file() && read_file(entry.path()).find(kSecret) != std::string::npos)
          found.push_back(entry.path());
      }
    }
    return found;
  }

  void expect_denied(BackgroundCommand& command) {
    while (command.program().running()) {
      keep_packs();
      ::usleep(5'000);
    }
    const CommandResult result = command.finish(kPatience);
    EXPECT_NE(result.exit_code, 0) << result.out;
    EXPECT_THAT(result.err, HasSubstr("may not move processes of"));
    EXPECT_THAT(files_with_secret(), IsEmpty());
    expect_progress();
  }

  /// Waits until it reports that it is paused; returns the migration's id.
  std::string wait_until_paused(const BackgroundCommand& command) const {
    EXPECT_TRUE(command.wait_for_output(
        [](const std::string& text) { return text.find("paused: ") != text.npos; }, kPatience))
        << command.out_so_far() << command.err_so_far();
    const std::string text = command.out_so_far() + command.err_so_far();
    static const std::regex kId("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}");
    std::smatch id;
    EXPECT_TRUE(std::regex_search(text, id, kId)) << text;
    return id.str();
  }
};

TEST_F(StolenMemory, SetuidProgramRunInThePauseIsNotStored) {
  ASSERT_NO_FATAL_FAILURE(start(job_command("exec " + steal())));
  BackgroundCommand taken = checkpoint({"--pause-before-switchover"});
  const std::string id = wait_until_paused(taken);
  ASSERT_NO_FATAL_FAILURE(give_cue());
  EXPECT_EQ(hosts_.order(Host::kA, {"continue", id}).exit_code, 0);
  expect_denied(taken);
}

TEST_F(StolenMemory, SetuidProgramRunBeforeTheDumpIsNotStored) {
  ASSERT_NO_FATAL_FAILURE(start(job_command("exec " + steal())));
  give_cue_before_the_dump();
  BackgroundCommand taken = checkpoint();
  expect_denied(taken);
  EXPECT_THAT(job_->output(), HasSubstr("changed"));
}

/// Such a member is checked at the switchover in any case. It must not be read before.
TEST_F(StolenMemory, NewChildIsNotReadInARound) {
  ASSERT_NO_FATAL_FAILURE(start(job_command(steal() + " & sleep 1000")));
  BackgroundCommand taken = checkpoint({"--pause-before-switchover"});
  const std::string id = wait_until_paused(taken);
  ASSERT_NO_FATAL_FAILURE(give_cue());
  // Rounds follow if VRAM has changed.
  for (int i = 0; i < 400 && taken.program().running() && files_with_secret().empty(); ++i) {
    (void)client_.ask(hosts_.address(Host::kA), kCounterPort, Milliseconds(100));
    keep_packs();
    ::usleep(20'000);
  }
  (void)hosts_.order(Host::kA, {"continue", id});  // it has ended already
  const CommandResult result = taken.finish(kPatience);
  EXPECT_NE(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.err, HasSubstr("may not move processes of"));
  EXPECT_THAT(files_with_secret(), IsEmpty());
}

TEST_F(StolenMemory, AllowedProcessIsStored) {
  ASSERT_NO_FATAL_FAILURE(start(job_command("echo changed; exec sleep 1000")));
  BackgroundCommand taken = checkpoint({"--pause-before-switchover"});
  const std::string id = wait_until_paused(taken);
  ASSERT_NO_FATAL_FAILURE(give_cue());
  EXPECT_EQ(hosts_.order(Host::kA, {"continue", id}).exit_code, 0);
  const CommandResult result = taken.finish(kPatience);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  expect_progress();
}

struct Departure {
  const char* name;
  const char* does;
  const char* says;
};

void PrintTo(const Departure& departure, std::ostream* out) { *out << departure.name; }

class Departed : public ChangedMembers, public testing::WithParamInterface<Departure> {};

TEST_P(Departed, ChangedMemberIsNotMoved) {
  ASSERT_NO_FATAL_FAILURE(start(job_command(GetParam().does)));
  give_cue_before_the_dump();
  const MigrateOutcome outcome = hosts_.migrate(Host::kA, job_->pid());
  EXPECT_EQ(outcome.exit_code, kFailedExit) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(GetParam().says));
  expect_progress();
}

INSTANTIATE_TEST_SUITE_P(
    , Departed,
    testing::Values(
        Departure{"FromItsRoot",
                  "exec /usr/bin/python3 -I -S -c 'import os, time; os.chroot(\"/tmp\"); "
                  "print(\"changed\", "
                  "flush=True); time.sleep(1000)'",
                  "[root-directory]"},
        Departure{"FromItsMounts", "exec unshare --mount sh -c 'echo changed; exec sleep 1000'",
                  "[namespaces]"},
        Departure{"FromItsHostName", "exec unshare --uts sh -c 'echo changed; exec sleep 1000'",
                  "[namespaces]"},
        Departure{"ToAnotherProcess",
                  "exec /usr/bin/python3 -I -S -c 'import os, time; kept = os.pidfd_open(1); "
                  "print(\"changed\", flush=True); time.sleep(1000)'",
                  "[kernel-object]"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gcr::e2e
