// The owner of a directory decides where its names lead. A restore opens, creates, binds and
// removes there only what the process itself could, even if names are replaced concurrently.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>

#include "migrate-agent/criu/runs/criu.h"
#include "src/base/unique_fd.h"
#include "tests/criu/program.h"

namespace gcr::criu::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr uid_t kUser = 65'534;

/// The owner of the program, and the owner of files that it must not touch.
struct Case {
  const char* name;
  uid_t member;
  uid_t other;
  std::vector<std::string> starter;
};

/// Part of the tests' names.
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class RestoredNames : public testing::TestWithParam<Case> {
 protected:
  RestoredNames() {
    fs::permissions(directory_.path(), fs::perms(0755));
    EXPECT_EQ(::chown(members_own_.c_str(), GetParam().member, GetParam().member), 0);
    EXPECT_EQ(::chown(others_.c_str(), GetParam().other, GetParam().other), 0);
  }

  fs::path file() const { return members_own_ / "output"; }

  /// A program of the member with files in its own directory is dumped and has ended.
  void dump_program(const std::string& mode) {
    std::vector<std::string> command = GetParam().starter;
    command.insert(command.end(), {GCR_COUNTING_PROGRAM, file(), mode});
    program_.emplace(command);
    wait_for_progress(file(), {}, 5);
    const auto rights = dump(criu_command(), program_->pid(), images_);
    ASSERT_TRUE(rights) << rights.error().message();
    members_[program_->pid()] = rights->front().rights;
    ASSERT_TRUE(kill_stopped(program_->process()));
    program_->reap();
    dumped_ = read_output(file());
  }

  Result<RestoredTree> restore(RestoreOptions options = {}) {
    return criu::restore(criu_command(), images_, members_, std::move(options));
  }

  void expect_progress() {
    const auto tree = restore();
    ASSERT_TRUE(tree) << tree.error().message();
    ASSERT_TRUE(resume_stopped(tree->root()));
    expect_gapless(wait_for_progress(file(), dumped_, 20));
  }

  /// The member's directory is replaced by a link to the other's, which has the same output.
  void lead_to_others() const {
    fs::create_hard_link(file(), others_ / "output");
    fs::rename(members_own_, directory_.path() / "moved");
    fs::create_directory_symlink(others_, members_own_);
  }

  Directory directory_;
  const fs::path images_ = directory_.make("images");
  const fs::path members_own_ = directory_.make("members");
  const fs::path others_ = directory_.make("others");
  std::optional<Program> program_;
  Rights members_;
  Output dumped_;
};

/// Files created in a directory since.
class Watch {
 public:
  explicit Watch(const fs::path& directory) : events_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    EXPECT_GE(::inotify_add_watch(events_.get(), directory.c_str(), IN_CREATE | IN_MOVED_TO), 0);
  }
  bool saw_anything() const {
    char event[4096];
    return ::read(events_.get(), event, sizeof(event)) > 0;
  }

 private:
  const UniqueFd events_;
};

TEST_P(RestoredNames, RemovedFilesAreCreatedOnlyInRootsDirectory) {
  ASSERT_NO_FATAL_FAILURE(dump_program("ghost"));
  lead_to_others();
  const Watch others(others_);
  ASSERT_NO_FATAL_FAILURE(expect_progress());
  EXPECT_FALSE(others.saw_anything());
  EXPECT_TRUE(fs::is_empty("/run/gcr-removed"));  // which is another one for the program
}

TEST_P(RestoredNames, SocketNamesReplaceThoseOfTheProgram) {
  ASSERT_NO_FATAL_FAILURE(dump_program("socket"));
  struct stat before {};
  ASSERT_EQ(::lstat((members_own_ / "output.socket").c_str(), &before), 0);
  ASSERT_NO_FATAL_FAILURE(expect_progress());
  struct stat after {};
  ASSERT_EQ(::lstat((members_own_ / "output.socket").c_str(), &after), 0);
  EXPECT_EQ(std::tuple(after.st_uid, after.st_gid, after.st_mode),
            std::tuple(GetParam().member, GetParam().member, before.st_mode));
  EXPECT_NE(after.st_ino, before.st_ino);
}

/// A socket with a name, and the type of file under that name.
class Listener {
 public:
  explicit Listener(const fs::path& name)
      : name_(name), socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    EXPECT_LT(name.string().size(), sizeof(address.sun_path));
    name.string().copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(socket_.get(), 8), 0);
    file_ = identity();
  }
  void belong_to(uid_t user) {
    ASSERT_EQ(::chown(name_.c_str(), user, user), 0);
    file_ = identity();
  }
  bool is_as_before() const { return identity() == file_; }

 private:
  std::pair<ino_t, uid_t> identity() const {
    struct stat status {};
    if (::lstat(name_.c_str(), &status) != 0) return {};
    return {status.st_ino, status.st_uid};
  }

  const fs::path name_;
  const UniqueFd socket_;
  std::pair<ino_t, uid_t> file_;
};

TEST_P(RestoredNames, SocketNamesDoNotReplaceOtherFiles) {
  ASSERT_NO_FATAL_FAILURE(dump_program("socket"));
  Listener others(others_ / "output.socket");
  ASSERT_NO_FATAL_FAILURE(others.belong_to(GetParam().other));
  lead_to_others();
  EXPECT_FALSE(restore());
  EXPECT_TRUE(others.is_as_before());
}

/// Opening alone may have an effect: on a watchdog, a tape, or a FIFO with a blocked peer.
TEST_P(RestoredNames, ForbiddenFilesAreNotOpened) {
  ASSERT_NO_FATAL_FAILURE(dump_program("count"));
  const fs::path secret = others_ / "secret";
  fs::copy_file(file(), secret);
  ASSERT_EQ(::chown(secret.c_str(), GetParam().other, GetParam().other), 0);
  fs::permissions(secret, fs::perms(0600));
  fs::remove(file());
  fs::create_symlink(secret, file());
  const UniqueFd opened(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ASSERT_GE(::inotify_add_watch(opened.get(), secret.c_str(), IN_OPEN), 0);
  EXPECT_FALSE(restore());
  char event[4096];
  EXPECT_LT(::read(opened.get(), event, sizeof(event)), 0) << "it was opened";
}

TEST_P(RestoredNames, LeasedFilesDoNotBlockARestore) {
  ASSERT_NO_FATAL_FAILURE(dump_program("count"));
  const UniqueFd leased(::open(file().c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::fcntl(leased.get(), F_SETSIG, SIGCHLD), 0);  // the default action is none
  ASSERT_EQ(::fcntl(leased.get(), F_SETLEASE, F_WRLCK), 0);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(restore());
  // The holder of a lease has 45 seconds to release it.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  ASSERT_EQ(::fcntl(leased.get(), F_SETLEASE, F_UNLCK), 0);
  ASSERT_NO_FATAL_FAILURE(expect_progress());
}

TEST_P(RestoredNames, ProcessWithoutKnownRightsIsNotRestored) {
  ASSERT_NO_FATAL_FAILURE(dump_program("count"));
  members_.clear();
  EXPECT_FALSE(restore());
}

TEST_P(RestoredNames, RestoreEndsOnCancellation) {
  const std::set<pid_t> before = all_processes();
  ASSERT_NO_FATAL_FAILURE(dump_program("count"));
  RestoreOptions options;
  options.go_on = [] { return Error(Code::kCancelled, "the source is gone"); };
  const auto tree = restore(std::move(options));
  ASSERT_FALSE(tree);
  EXPECT_EQ(tree.error().code(), Code::kCancelled);
  EXPECT_THAT(tree.error().message(), HasSubstr("the source is gone"));
  EXPECT_EQ(all_processes(), before);
}

const std::vector<Case> kCases = {
    {"Root", 0, kUser, {"/usr/bin/setpriv", "--bounding-set", "-all"}},
    // Root without CAP_SYS_RESOURCE cannot dump these: run in a guest (tests/vm).
    {"User",
     kUser,
     0,
     {"/usr/bin/setpriv", "--reuid", std::to_string(kUser), "--regid", std::to_string(kUser),
      "--clear-groups"}}};

INSTANTIATE_TEST_SUITE_P(Each, RestoredNames, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gcr::criu::test
