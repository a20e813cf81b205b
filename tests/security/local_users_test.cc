// Local users reach the agent through its Unix socket without a certificate, and can access only
// their own processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>

#include "tests/daemon/journals.h"
#include "tests/security/support.h"

namespace gcr::daemon::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int kRefused = 3;
constexpr int kUnreachable = 4;

/// An agent whose socket is accessible to all users.
class LocalUsers : public testing::Test {
 protected:
  LocalUsers() { ::chmod(home_.folder->path().c_str(), 0755); }

  std::string settings() const { return "local_socket = \"" + socket_ + "\""; }
  Finished list_as(uid_t uid) { return run_cli({"list", "unix:" + socket_, "--all"}, uid); }
  Finished migrate_as(uid_t uid, pid_t pid) {
    return run_cli({"unix:" + socket_, "127.0.0.1:1", std::to_string(pid)}, uid);
  }

  control::test::Credentials credentials_;
  AgentHome home_;
  std::string socket_ = home_.folder->path() + "/local.sock";
};

TEST_F(LocalUsers, SeeTheirOwnMigrationsAndRootSeesAll) {
  AgentProcess agent(credentials_, settings(), home_);
  const Uuid alices = write_source(home_.state_dir(), commit::SourceState::kUndone,
                                   {.command = "alices program", .uid = kAlice});
  const Uuid bobs = write_source(home_.state_dir(), commit::SourceState::kUndone,
                                 {.command = "bobs program", .uid = kBob});
  const Finished seen = list_as(kAlice);
  EXPECT_EQ(seen.exit_status, 0) << seen.output;
  EXPECT_THAT(seen.output, AllOf(HasSubstr("alices program"), Not(HasSubstr("bobs program"))));
  EXPECT_THAT(list_as(0).output, AllOf(HasSubstr("alices program"), HasSubstr("bobs program")));

  const std::string agent_word = "unix:" + socket_;
  EXPECT_EQ(run_cli({"status", agent_word, bobs.to_string()}, kAlice).exit_status, kNotAuthorised);
  EXPECT_EQ(run_cli({"cancel", agent_word, bobs.to_string()}, kAlice).exit_status, kNotAuthorised);
  EXPECT_EQ(run_cli({"status", agent_word, alices.to_string()}, kAlice).exit_status, 0);
  const Finished resolved =
      run_cli({"resolve", agent_word, alices.to_string(), "--run-here", "--peer-is-gone"}, kAlice);
  EXPECT_EQ(resolved.exit_status, kNotAuthorised);
  EXPECT_THAT(resolved.output, HasSubstr("local users may not"));
}

TEST_F(LocalUsers, MayMoveOnlyTheirOwnProcesses) {
  AgentProcess agent(credentials_, settings(), home_);
  const Sleeper own(kAlice);
  const Sleeper others(kBob);
  const Finished examined = migrate_as(kAlice, own.pid());
  EXPECT_EQ(examined.exit_status, kRefused) << examined.output;
  const Finished refused = migrate_as(kAlice, others.pid());
  EXPECT_EQ(refused.exit_status, kNotAuthorised) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("only their own processes"));
  EXPECT_EQ(migrate_as(kAlice, 1).exit_status, kNotAuthorised);
  EXPECT_EQ(migrate_as(0, others.pid()).exit_status, kRefused);
}

TEST_F(LocalUsers, MayCheckpointOnlyTheirOwnProcesses) {
  AgentProcess agent(credentials_, settings(), home_);
  const Sleeper own(kAlice);
  const Sleeper others(kBob);
  const std::string folder = home_.folder->path() + "/alices";
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
  ASSERT_EQ(::chown(folder.c_str(), kAlice, kAlice), 0);
  const auto checkpoint_as = [&](uid_t uid, pid_t pid, const std::string& directory) {
    return run_cli({"checkpoint", "unix:" + socket_, std::to_string(pid), directory, "--stop"},
                   uid);
  };
  const Finished refused = checkpoint_as(kAlice, others.pid(), folder + "/store");
  EXPECT_EQ(refused.exit_status, kNotAuthorised) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("only their own processes"));
  // It has no GPU memory, but its owner was no obstacle.
  const Finished examined = checkpoint_as(kAlice, own.pid(), folder + "/store");
  EXPECT_EQ(examined.exit_status, kRefused) << examined.output;
  EXPECT_FALSE(std::filesystem::exists(folder + "/store"));
}

TEST_F(LocalUsers, MayRestoreOnlyFromTheirOwnDirectories) {
  AgentProcess agent(credentials_, settings(), home_);
  const std::string folder = home_.folder->path() + "/bobs";
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
  ASSERT_EQ(::chown(folder.c_str(), kBob, kBob), 0);
  const auto restore_as = [&](uid_t uid) {
    return run_cli({"restore", "unix:" + socket_, folder, "--once"}, uid);
  };
  const Finished refused = restore_as(kAlice);
  EXPECT_EQ(refused.exit_status, kNotAuthorised) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("only their own processes"));
  const Finished empty = restore_as(kBob);
  EXPECT_EQ(empty.exit_status, kRefused) << empty.output;
  EXPECT_THAT(empty.output, HasSubstr("has no checkpoint"));
}

TEST_F(LocalUsers, CannotActAsASource) {
  AgentProcess agent(credentials_, settings(), home_);
  Client client({.host = socket_, .port = 0}, nullptr);
  EXPECT_EQ(client.offer(Uuid::random()).failure().code(), "permission-denied");
}

TEST_F(LocalUsers, StayTheSameUserAtTheDestination) {
  AgentProcess agent(credentials_, "", home_);
  const auto answer_to = [&](const char* ordered_by, unsigned uid, const char* user) {
    Client source(agent, credentials_, "agent");
    proto::Envelope request;
    proto::PreflightRequest& preflight = *request.mutable_preflight_request();
    const Uuid id = Uuid::random();
    preflight.set_migration_id(id.bytes.data(), id.bytes.size());
    preflight.set_only(true);
    preflight.set_ordered_by(ordered_by);
    preflight.add_members()->set_uid(uid);
    preflight.mutable_members(0)->set_user(user);
    source.send(request);
    for (;;) {
      const proto::Envelope answer = source.receive();
      if (!answer.has_alive()) return answer.failure();
    }
  };
  constexpr unsigned kDaemon = 1;
  const auto refused = answer_to("uid 1", kDaemon, "alice");
  EXPECT_EQ(refused.code(), "permission-denied");
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("\"alice\""), HasSubstr("\"daemon\"")));
  EXPECT_EQ(answer_to("uid 71001", kAlice, "alice").code(), "permission-denied");
  for (const auto& [by, user] : {std::pair{"uid 1", "daemon"}, std::pair{"night-shift", "alice"}}) {
    EXPECT_NE(answer_to(by, kDaemon, user).code(), "permission-denied") << by;
  }
}

TEST_F(LocalUsers, FloodOfOneUserLeavesRoomForOthers) {
  AgentProcess agent(credentials_, settings() + "\nmax_startups = 8\nstartup_timeout_ms = 60000",
                     home_);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socket_.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const Sleeper flood([&] {
    if (::setresuid(kBob, kBob, kBob) != 0) ::_exit(1);
    for (int i = 0; i < 200; ++i) {
      const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
      if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) ::_exit(1);
    }
  });
  EXPECT_TRUE(agent.wait_for_log("closed a local connection of uid 71002"));
  EXPECT_EQ(list_as(kAlice).exit_status, 0);
  Client over_the_network(agent, credentials_, "operator");
}

TEST_F(LocalUsers, SocketOfADeadDaemonIsReplaced) {
  { AgentProcess killed(credentials_, settings(), home_); }
  EXPECT_TRUE(std::filesystem::is_socket(socket_));
  {
    AgentProcess next(credentials_, settings(), home_);
    EXPECT_EQ(list_as(kAlice).exit_status, 0);
    struct stat info {};
    ASSERT_EQ(::stat(socket_.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0666U);
    ::kill(next.pid(), SIGTERM);
    EXPECT_EQ(next.wait_for_end(), 0);
  }
  EXPECT_FALSE(std::filesystem::exists(socket_));
  const Finished finished = list_as(kAlice);
  EXPECT_EQ(finished.exit_status, kUnreachable);
  EXPECT_THAT(finished.output, HasSubstr("local_socket"));
}

TEST_F(LocalUsers, LinkIsReplacedNotFollowed) {
  const std::string target = home_.folder->path() + "/target";
  gcr::test::write_private_file(target, "precious");
  std::filesystem::create_symlink(target, socket_);
  AgentProcess agent(credentials_, settings(), home_);
  EXPECT_EQ(std::filesystem::symlink_status(socket_).type(), std::filesystem::file_type::socket);
  EXPECT_EQ(std::filesystem::file_size(target), 8U);
}

TEST_F(LocalUsers, SocketNeedsAProtectedDirectory) {
  ::chmod(home_.folder->path().c_str(), 0777);
  EXPECT_THROW(AgentProcess(credentials_, settings(), home_), std::runtime_error);
}

TEST_F(LocalUsers, SocketOfAnotherUserIsNotTrusted) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socket_.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ::chmod(home_.folder->path().c_str(), 0777);
  const Sleeper impostor([&] {
    if (::setresuid(kBob, kBob, kBob) != 0) ::_exit(1);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    if (::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
        ::chmod(socket_.c_str(), 0666) != 0 || ::listen(fd, 8) != 0) {
      ::_exit(1);
    }
  });
  const Finished finished = list_as(kAlice);
  EXPECT_EQ(finished.exit_status, kNotAuthorised);
  EXPECT_THAT(finished.output, HasSubstr("belongs to uid 71002"));
}

}  // namespace
}  // namespace gcr::daemon::test
