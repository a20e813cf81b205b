// A checkpoint is restored only if a trusted agent has signed it, and without rights that its user
// has lost since.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "src/base/users.h"
#include "store/manifest.h"
#include "tests/security/support.h"

namespace gcr::daemon::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// A user of every machine, and a group of every machine that the user is not in.
constexpr uid_t kUser = 1;
constexpr gid_t kLost = 0;

/// Signed checkpoints of jobs that never ran, and the agent to restore them.
class CheckpointsHostile : public testing::Test {
 protected:
  CheckpointsHostile() {
    ::chmod(home_.folder->path().c_str(), 0755);
    std::filesystem::create_directory(store_);
    std::filesystem::permissions(store_, std::filesystem::perms(0700));
  }

  void start(const std::string& peers = "") {
    agent_.emplace(own_, "local_socket = \"" + socket_ + "\"\n" + peers, home_);
  }

  proto::Credentials rights_of(uid_t uid, gid_t gid) const {
    proto::Credentials rights;
    for (int i = 0; i < 4; ++i) {
      rights.add_uids(uid);
      rights.add_gids(gid);
    }
    return rights;
  }

  /// Its VRAM, which is in no buffer, distinguishes it from others.
  void sign(const std::string& name, const control::TlsFiles& signer, std::uint64_t vram_bytes,
            const std::vector<proto::Credentials>& threads) {
    struct stat facts {};
    ASSERT_EQ(::stat(store_.c_str(), &facts), 0);
    const auto directory = store::Directory::create(store_, {facts.st_uid, facts.st_gid});
    ASSERT_TRUE(directory) << directory.error().message();
    ASSERT_TRUE(directory->make_packs());
    proto::Manifest manifest;
    manifest.set_format(store::kFormat);
    const Uuid id = Uuid::random();
    manifest.set_checkpoint_id(id.bytes.data(), id.bytes.size());
    manifest.set_name(name);
    manifest.set_taken_unix_ms(now_ms_ += 1'000);
    manifest.set_content_key(std::string(32, 'c'));
    manifest.set_digest_key(std::string(32, 'd'));
    manifest.set_vram_bytes(vram_bytes);
    manifest.mutable_job()->add_members()->set_command("train");
    proto::DumpedMember& member = *manifest.add_members();
    for (const proto::Credentials& thread : threads) *member.add_credentials() = thread;
    const Status written =
        store::write_manifest(*directory, store::file_of(name), manifest, signer);
    ASSERT_TRUE(written) << written.error().message();
  }

  /// The result of an operator's restore. A trusted one gets as far as preflight.
  proto::MigrateReport restore(const std::string& name) {
    Client client(*agent_, credentials_, "operator");
    proto::Envelope request;
    request.mutable_load_request()->set_directory(store_);
    request.mutable_load_request()->set_name(name);
    client.send(request);
    for (;;) {
      proto::Envelope answer = client.receive();
      if (answer.has_migrate_report()) return answer.migrate_report();
    }
  }

  /// The same with a store that belongs to the user, who requests it.
  Finished restore_as_user(const std::string& name, uid_t uid = kUser) {
    return run_cli({"restore", "unix:" + socket_, store_, name}, uid);
  }
  void give_store_to_user() {
    ASSERT_EQ(::chown(store_.c_str(), kUser, primary_group(kUser).value()), 0);
  }

  control::test::Credentials credentials_;
  const control::TlsFiles own_ = credentials_.issue({.common_name = "node1"});
  AgentHome home_;
  const std::string socket_ = home_.folder->path() + "/local.sock";
  const std::string store_ = home_.folder->path() + "/checkpoints";
  std::optional<AgentProcess> agent_;
  std::int64_t now_ms_ = 1'795'600'800'000;
};

TEST_F(CheckpointsHostile, CheckpointOfAnUnlistedAgentIsNotRestored) {
  start("[[peers]]\nname = \"node2\"");
  sign("own", own_, 1, {rights_of(0, 0)});
  sign("peers", credentials_.issue({.common_name = "node2"}), 2, {rights_of(0, 0)});
  sign("strangers", credentials_.issue({.common_name = "node3"}), 3, {rights_of(0, 0)});
  const proto::MigrateReport refused = restore("strangers");
  EXPECT_EQ(refused.code(), "permission-denied");
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("\"node3\""), HasSubstr("[[peers]]")));
  EXPECT_EQ(restore("own").vram_bytes(), 1U);
  EXPECT_EQ(restore("peers").vram_bytes(), 2U);
}

TEST_F(CheckpointsHostile, NewestMeansNewestWithAnAcceptedSigner) {
  start("[[peers]]\nname = \"node2\"");
  sign("old", credentials_.issue({.common_name = "node2"}), 2, {rights_of(0, 0)});
  sign("new", credentials_.issue({.common_name = "node3"}), 3, {rights_of(0, 0)});
  EXPECT_EQ(restore("").vram_bytes(), 2U);
}

TEST_F(CheckpointsHostile, WithoutPeersEveryAgentIsAccepted) {
  start();
  sign("strangers", credentials_.issue({.common_name = "node3"}), 3, {rights_of(0, 0)});
  EXPECT_EQ(restore("strangers").vram_bytes(), 3U);
}

TEST_F(CheckpointsHostile, LostGroupIsNotRestoredForALocalUser) {
  ASSERT_THAT(groups_of(kUser), Not(testing::Contains(kLost)));
  start();
  give_store_to_user();
  const proto::Credentials good = rights_of(kUser, primary_group(kUser).value());
  std::vector<proto::Credentials> with_lost(5, good);
  for (int i = 0; i < 4; ++i) with_lost[static_cast<std::size_t>(i)].set_gids(i, kLost);
  with_lost.back().add_groups(primary_group(kUser).value());
  with_lost.back().add_groups(kLost);
  int number = 0;
  for (const proto::Credentials& thread : with_lost) {
    const std::string name = "lost-" + std::to_string(number++);
    sign(name, own_, 1, {good, thread});
    const Finished refused = restore_as_user(name);
    EXPECT_EQ(refused.exit_status, kNotAuthorised) << refused.output;
    EXPECT_THAT(refused.output, AllOf(HasSubstr("group " + group_name(kLost)),
                                      HasSubstr(user_name(kUser)), HasSubstr("operator")));
  }
  // An operator restores it unchanged, and so does root.
  EXPECT_EQ(restore("lost-4").vram_bytes(), 1U);
  EXPECT_NE(restore_as_user("lost-4", 0).exit_status, kNotAuthorised);
}

TEST_F(CheckpointsHostile, CurrentGroupsAreRestored) {
  start();
  give_store_to_user();
  proto::Credentials thread = rights_of(kUser, primary_group(kUser).value());
  for (const gid_t gid : groups_of(kUser)) thread.add_groups(gid);
  sign("good", own_, 1, {thread});
  const Finished asked = restore_as_user("good");
  EXPECT_NE(asked.exit_status, kNotAuthorised) << asked.output;
  EXPECT_THAT(asked.output, AllOf(HasSubstr("open: loading"), Not(HasSubstr("group"))));
}

}  // namespace
}  // namespace gcr::daemon::test
