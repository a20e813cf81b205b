// The process that moves is hostile: credentials forged in its images, or files opened after
// preflight, stop the migration, and the program runs on unchanged at the source.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/keyctl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>

#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/units.h"
#include "tests/e2e/apps.h"
#include "tests/e2e/two_hosts.h"

namespace gcr::e2e {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr uid_t kOther = 65'534;

class HostileTest : public testing::Test {
 protected:
  HostileTest() {
    std::string path = "/dev/shm/gcr-hostile-XXXXXX";
    if (::mkdtemp(path.data()) != nullptr) directory_ = path;
    fs::permissions(directory_, fs::perms(0755));
  }
  ~HostileTest() override {
    hosts_.reset();
    fs::remove_all(directory_);
  }

  void start(std::vector<std::string> options = {}) {
    options.insert(options.end(), {"--fault-points", "true"});
    hosts_.emplace(options);
    counter_.emplace(start_counter(*hosts_, Host::kA, 16 * kMiB));
    client_.emplace(hosts_->variable("NS", Host::kA));
    ASSERT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst);
    source_ = hosts_->use(Host::kA);
    destination_ = hosts_->use(Host::kB);
  }

  /// A counter run by root without the capabilities that pass every check, which appends its output
  /// to `output`.
  void start_confined(const fs::path& output, const std::vector<std::string>& options = {}) {
    hosts_.emplace(options);
    std::vector<std::string> command = {"setpriv",
                                        "--bounding-set",
                                        "-dac_override,-dac_read_search",
                                        "sh",
                                        "-c",
                                        "exec \"$@\" >>" + output.string() + " 2>&1",
                                        "sh"};
    for (const std::string& word : counter_command(*hosts_, 0)) command.push_back(word);
    counter_.emplace(hosts_->start_app(Host::kA, command));
    client_.emplace(hosts_->variable("NS", Host::kA));
    ASSERT_EQ(ask_until_it_answers(), std::to_string(kCounterFirst)) << read_file(output.string());
    source_ = hosts_->use(Host::kA);
    destination_ = hosts_->use(Host::kB);
  }

  /// A file of another user in that user's directory; all others may append to it, and neither read
  /// nor remove it.
  fs::path write_anothers(const std::string& content) const {
    const fs::path path = write("theirs", content);
    EXPECT_EQ(::chmod(path.c_str(), 0622), 0);
    EXPECT_EQ(::chmod(directory_.c_str(), 01777), 0);
    for (const fs::path& one : {path, directory_})
      EXPECT_EQ(::chown(one.c_str(), kOther, kOther), 0);
    return path;
  }

  fs::path write(const std::string& name, const std::string& content) const {
    std::ofstream(directory_ / name) << content;
    return directory_ / name;
  }

  /// The first answer of a program that may not listen yet.
  std::string ask_until_it_answers() const {
    for (int attempt = 0; attempt < 300; ++attempt) {
      const auto answer = client_->ask(hosts_->address(Host::kA), kCounterPort, Milliseconds(100));
      if (answer) return *answer;
    }
    return "";
  }

  /// See migrate-agent/base/fault.
  void arm(Host host, const std::string& line) const {
    std::ofstream(hosts_->directory(host) + "/faults") << line << "\n";
  }

  /// The migration fails for this reason and leaves nothing, and the program is undisturbed.
  void expect_failure(const testing::Matcher<std::string>& reason) {
    const MigrateOutcome outcome = hosts_->migrate(Host::kA, counter_->pid());
    EXPECT_EQ(outcome.exit_code, kFailedExit) << outcome.out << outcome.err;
    EXPECT_THAT(outcome.err, reason);
    EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst + 1);
    EXPECT_EQ(hosts_->use_coming_to(Host::kA, source_), source_);
    EXPECT_EQ(hosts_->use_coming_to(Host::kB, destination_), destination_);
  }

  /// Whether the counter at the source has it open.
  bool has_open(const fs::path& file) const {
    const fs::path descriptors = "/proc/" + std::to_string(counter_->pid()) + "/fd";
    return std::ranges::any_of(fs::directory_iterator(descriptors), [&](const auto& entry) {
      return fs::read_symlink(entry.path()) == file;
    });
  }

  fs::path directory_;
  std::optional<TwoHosts> hosts_;
  std::optional<App> counter_;
  std::optional<UdpClient> client_;
  HostUse source_;
  HostUse destination_;
};

TEST_F(HostileTest, ForgedUserNeverRunsAtTheDestination) {
  ASSERT_NO_FATAL_FAILURE(start());
  // The images are reached only through the worker's descriptor.
  arm(Host::kB,
      "destination.imaged run for images in /proc/$PPID/fd/*; do "
      "[ ! -e $images/pstree.img ] || " GCR_FORGING_CRIU " uid $images; done");
  expect_failure(AllOf(HasSubstr("uids are 4242 4242 4242 4242 as restored"),
                       HasSubstr("0 0 0 0 as the source's agent reports")));
}

TEST_F(HostileTest, FileOpenedAfterPreflightIsCompared) {
  const fs::path file = write("file", "content");
  const fs::path other = write("other", "CONTENT");
  ASSERT_NO_FATAL_FAILURE(
      start({"--prepare-b", "mount --bind " + other.string() + " " + file.string()}));
  arm(Host::kA, "source.prepared run bash -c 'exec 3<>/dev/udp/" + hosts_->address(Host::kA) + "/" +
                    std::to_string(kCounterPort) + "; echo open " + file.string() +
                    " >&3; timeout 60 head -c 1 <&3'");
  expect_failure(AllOf(HasSubstr(file.string() + " has other content"), HasSubstr("file-differs")));
  EXPECT_TRUE(has_open(file)) << "the counter did not open it";
}

/// A counter with every setting of states.c, or in one of its sandboxes.
class SandboxTest : public HostileTest {
 protected:
  fs::path states() const { return directory_ / "states"; }

  void start_in(const std::string& sandbox) {
    if (!hosts_) hosts_.emplace(std::vector<std::string>{"--fault-points", "true"});
    counter_.emplace(hosts_->start_app(
        Host::kA, {"sh", "-c",
                   "export LD_PRELOAD=$LD_PRELOAD:" GCR_STATES_LIBRARY " GCR_SANDBOX=" + sandbox +
                       " GCR_STATES=" + states().string() + "; exec " +
                       joined(counter_command(*hosts_, 16 * kMiB))}));
    client_.emplace(hosts_->variable("NS", Host::kA));
    ASSERT_EQ(ask_until_it_answers(), std::to_string(kCounterFirst)) << counter_->output();
    source_ = hosts_->use(Host::kA);
    destination_ = hosts_->use(Host::kB);
  }

  /// The report of a thread about itself: the first, or the second.
  std::string ask_states(pid_t pid, std::size_t thread) const {
    const std::string before = read_file(states().string());
    ::syscall(SYS_tgkill, pid, procfs::threads(pid).at(thread), kTell);
    std::string now = before;
    for (int i = 0; i < 1000 && (now.size() == before.size() || now.back() != '\n'); ++i) {
      ::poll(nullptr, 0, 10);
      now = read_file(states().string());
    }
    return now.substr(before.size());
  }

  static constexpr int kTell = 40;  ///< of states.c, as the next one
  static constexpr int kConfine = 41;
};

TEST_F(SandboxTest, ProcessSettingsSurviveARoundTrip) {
  ASSERT_GE(::syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr), 0);
  ASSERT_GE(::syscall(SYS_add_key, "user", "gcr-test-secret", "x", 1, KEY_SPEC_SESSION_KEYRING), 0);
  hosts_.emplace(std::vector<std::string>{"--fault-points", "true"});  // its agents see the key
  ::syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr);
  ASSERT_NO_FATAL_FAILURE(start_in("all"));
  const std::string first = ask_states(counter_->pid(), 0);
  const std::string second = ask_states(counter_->pid(), 1);
  EXPECT_THAT(first, HasSubstr("first sockets=reno,"));
  EXPECT_THAT(first, HasSubstr(" memory-deny-write-execute=1 memory-merge=1 lock-future=1"));
  EXPECT_THAT(first, HasSubstr("foreign-key=0"));
  EXPECT_THAT(second, HasSubstr(" memory-deny-write-execute=1"));
  const std::string kKeyring = "keyring";
  int expected = kCounterFirst;
  pid_t pid = counter_->pid();
  for (const Host from : {Host::kA, Host::kB}) {
    const MigrateReport outcome = hosts_->migrate_for_report(from, pid, {"--accept", "mdwe"});
    ASSERT_TRUE(migrated(outcome)) << outcome.err;
    // Its keys were not moved the first time.
    EXPECT_EQ(outcome.report.DebugString().find(kKeyring) != std::string::npos, from == Host::kA)
        << outcome.report.DebugString();
    pid = static_cast<pid_t>(outcome.report.destination_pid());
    EXPECT_EQ(ask_counter(*client_, *hosts_, other(from)), ++expected);
    EXPECT_EQ(ask_states(pid, 0), first);
    EXPECT_EQ(ask_states(pid, 1), second);
  }
}

TEST_F(SandboxTest, LandlockIsABlockerUnlessAccepted) {
  if (::syscall(444, nullptr, 0, 1) <= 0) GTEST_SKIP() << "the kernel has no Landlock";
  ASSERT_NO_FATAL_FAILURE(start_in("landlock"));
  const MigrateOutcome refused = hosts_->migrate(Host::kA, counter_->pid());
  EXPECT_EQ(refused.exit_code, kRefusedExit) << refused.out << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("landlock"));
  const MigrateOutcome other = hosts_->migrate(Host::kA, counter_->pid(), {"--accept", "mseal"});
  EXPECT_EQ(other.exit_code, kRefusedExit) << other.out << other.err;
  const MigrateOutcome wrong = hosts_->migrate(Host::kA, counter_->pid(), {"--accept", "terminal"});
  EXPECT_NE(wrong.exit_code, 0);
  EXPECT_THAT(wrong.err, HasSubstr("\"terminal\" is not a finding that can be accepted"));
  EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst + 1);
  EXPECT_TRUE(migrated(hosts_->migrate(Host::kA, counter_->pid(), {"--accept", "landlock"})));
  EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kB), kCounterFirst + 2);
}

TEST_F(SandboxTest, LandlockEnteredAfterPreflightIsRefused) {
  if (::syscall(444, nullptr, 0, 1) <= 0) GTEST_SKIP() << "the kernel has no Landlock";
  ASSERT_NO_FATAL_FAILURE(start_in("all"));
  const pid_t thread = procfs::threads(counter_->pid()).at(1);
  arm(Host::kA,
      "source.prepared run kill -" + std::to_string(kConfine) + " " + std::to_string(thread));
  expect_failure(HasSubstr("1 threads of process"));
}

/// Of all threads of a process, as the kernel tells them.
std::set<std::string> filters_of(pid_t pid) {
  std::set<std::string> all;
  for (const pid_t tid : procfs::threads(pid)) {
    const std::string thread = std::to_string(pid) + "/task/" + std::to_string(tid);
    all.insert(procfs::status_field(thread, "Seccomp") + " " +
               procfs::status_field(thread, "Seccomp_filters"));
  }
  return all;
}

TEST_F(SandboxTest, AllThreadsKeepTheFilterOfTheirProcess) {
  ASSERT_NO_FATAL_FAILURE(start_in("filter"));
  pid_t pid = counter_->pid();
  ASSERT_GT(procfs::threads(pid).size(), 1U);
  const std::set<std::string> kFiltered = {"2 1"};
  ASSERT_EQ(filters_of(pid), kFiltered);
  int expected = kCounterFirst;
  for (const Host from : {Host::kA, Host::kB}) {
    const MigrateReport outcome = hosts_->migrate_for_report(from, pid, {});
    ASSERT_TRUE(migrated(outcome)) << outcome.err;
    pid = static_cast<pid_t>(outcome.report.destination_pid());
    EXPECT_EQ(ask_counter(*client_, *hosts_, other(from)), ++expected);
    EXPECT_EQ(filters_of(pid), kFiltered);
  }
}

TEST_F(SandboxTest, SealedMemoryIsABlockerUnlessAccepted) {
  ASSERT_NO_FATAL_FAILURE(start_in("seal"));
  const MigrateOutcome refused = hosts_->migrate(Host::kA, counter_->pid());
  EXPECT_EQ(refused.exit_code, kRefusedExit) << refused.out << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("mseal"));
  EXPECT_TRUE(migrated(hosts_->migrate(Host::kA, counter_->pid(), {"--accept", "landlock,mseal"})));
}

/// The worker checks, with its own capabilities.
TEST_F(HostileTest, ProgramGetsOnlyFilesItMayOpen) {
  const fs::path output = write("output", "");
  ASSERT_NO_FATAL_FAILURE(start_confined(output));
  fs::permissions(directory_, fs::perms(0700));  // the file stays open
  ASSERT_EQ(::chown(directory_.c_str(), kOther, kOther), 0);
  const MigrateOutcome refused = hosts_->migrate(Host::kA, counter_->pid());
  EXPECT_EQ(refused.exit_code, kRefusedExit) << refused.out << refused.err;
  EXPECT_THAT(refused.err, AllOf(HasSubstr("file-access"), HasSubstr(output.string())));

  ASSERT_EQ(::chown(directory_.c_str(), 0, 0), 0);
  EXPECT_TRUE(migrated(hosts_->migrate(Host::kA, counter_->pid())));
  EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kB), kCounterFirst + 1);
}

TEST_F(HostileTest, TmpfsFileOfAnotherUserIsNeitherStoredNorRemoved) {
  std::string secret;  // incompressible
  for (std::uint32_t state = 1; secret.size() < 64; secret += static_cast<char>(state >> 24)) {
    state = state * 1664525 + 1013904223;
  }
  const fs::path theirs = write_anothers(secret);
  ASSERT_NO_FATAL_FAILURE(start_confined(theirs));
  const std::string content = read_file(theirs);
  ASSERT_GT(content.size(), secret.size()) << "the counter has printed something";
  const std::string store = hosts_->directory() + "/checkpoints";
  const CommandResult taken =
      hosts_->order(Host::kA, {"checkpoint", std::to_string(counter_->pid()), store, "--stop"});
  ASSERT_EQ(taken.exit_code, 0) << taken.out << taken.err;
  EXPECT_EQ(read_file(theirs), content) << "--stop has removed it";
  for (const auto& entry : fs::recursive_directory_iterator(store)) {
    if (!entry.is_regular_file()) continue;
    EXPECT_EQ(read_file(entry.path()).find(secret), std::string::npos) << entry.path();
  }
  ASSERT_TRUE(counter_->program().wait(kPatience));
  const CommandResult restored = hosts_->order(Host::kA, {"restore", store});
  ASSERT_EQ(restored.exit_code, 0) << restored.out << restored.err;
  EXPECT_EQ(ask_counter(*client_, *hosts_, Host::kA), kCounterFirst + 1);
}

TEST_F(HostileTest, RemovedWriteOnlyFileIsRefused) {
  const fs::path theirs = write_anothers("secret");
  ASSERT_NO_FATAL_FAILURE(start_confined(theirs, {"--fault-points", "true"}));
  arm(Host::kA, "source.prepared run rm " + theirs.string());
  expect_failure(AllOf(HasSubstr("deleted-file-access"), HasSubstr(theirs.string())));
  EXPECT_FALSE(fs::exists(theirs)) << "it was removed after preflight";
  const MigrateOutcome refused = hosts_->migrate(Host::kA, counter_->pid());
  EXPECT_EQ(refused.exit_code, kRefusedExit) << refused.out << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("deleted-file-access"));
}

}  // namespace
}  // namespace gcr::e2e
