// The process that moves is an enemy: what it gets forged, or opens when nobody looks any more,
// stops the migration, and the program goes on at the source as it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

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

  /// A counter of root's without the capabilities that pass every check, which appends what it says
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

  /// A file of another user's in a directory of theirs; everybody else may append to it, and
  /// neither read nor remove it.
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

  /// See migrate-agent/fault.
  void arm(Host host, const std::string& line) const {
    std::ofstream(hosts_->directory(host) + "/faults") << line << "\n";
  }

  /// The migration fails for this reason, nothing of it stays, and the program has not noticed.
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
  // The images are reached through the worker's descriptor alone.
  arm(Host::kB,
      "destination.imaged run for images in /proc/$PPID/fd/*; do "
      "[ ! -e $images/pstree.img ] || " GCR_FORGING_CRIU " uid $images; done");
  expect_failure(AllOf(HasSubstr("uids are 4242 4242 4242 4242 as restored"),
                       HasSubstr("0 0 0 0 as the source's agent reports")));
}

TEST_F(HostileTest, FileThatIsOpenedAfterPreflightIsCompared) {
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

/// The check is the worker's, with the capabilities that it has.
TEST_F(HostileTest, ProgramGetsOnlyFilesThatItCouldOpenByItself) {
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

TEST_F(HostileTest, AFileInMemoryOfAnotherUsersIsNeitherStoredNorRemoved) {
  std::string secret;  // a compressor finds nothing in it
  for (std::uint32_t state = 1; secret.size() < 64; secret += static_cast<char>(state >> 24)) {
    state = state * 1664525 + 1013904223;
  }
  const fs::path theirs = write_anothers(secret);
  ASSERT_NO_FATAL_FAILURE(start_confined(theirs));
  const std::string content = read_file(theirs);
  ASSERT_GT(content.size(), secret.size()) << "the counter has said something";
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

TEST_F(HostileTest, ARemovedFileThatTheProgramMayOnlyWriteToIsRefused) {
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
