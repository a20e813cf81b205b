// The peer names files, and users can write to the directories: no link is followed, no file is
// replaced, and none is created for a user who could not have created it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "migrate-agent/commit/journal/journal.h"
#include "migrate-agent/process/memory_files/incoming.h"
#include "migrate-agent/process/memory_files/release.h"
#include "tests/process/memory_files/support.h"

namespace gcr::memory_files::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

class HostileIncoming : public testing::Test {
 protected:
  /// A file "file" owned by kUser.
  FileFacts one_file() const {
    FileFacts files;
    proto::MemoryFile& file = *files.Add();
    file.add_names(directory_.name("file"));
    file.set_mode(S_IFREG | 0640);
    file.set_uid(kUser);
    file.set_gid(kUser);
    file.set_size_bytes(3 << 20);
    file.set_held_bytes(4096);
    file.set_device(1);
    file.set_inode(2);
    return files;
  }

  Result<std::vector<IncomingFile>> look_at(const FileFacts& files, const std::string& boot = "") {
    findings_ = findings::Findings(findings::Side::kDestination);
    return plan(files, boot, findings_);
  }

  void expect_refused(const FileFacts& files, const std::string& reason) {
    ASSERT_TRUE(look_at(files));
    EXPECT_THAT(findings::reason_of(findings_.list()), HasSubstr(reason));
  }

  /// With "content" between holes.
  Result<Incoming> make(const FileFacts& files, const std::vector<proto::Credentials>& members) {
    const UniqueFd image(::open(images_.name(image_name(0)).c_str(), O_WRONLY | O_CREAT, 0600));
    EXPECT_EQ(::pwrite(image.get(), "content", 7, 1 << 20), 7);
    EXPECT_EQ(::ftruncate(image.get(), 3 << 20), 0);
    GCR_ASSIGN(auto incoming, look_at(files));
    EXPECT_THAT(findings_.list(), IsEmpty());
    return Incoming::make(std::move(incoming), images(), members);
  }

  UniqueFd images() const {
    return UniqueFd(::open(images_.path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  }

  const Directory directory_;
  const Directory images_;
  findings::Findings findings_{findings::Side::kDestination};
};

TEST_F(HostileIncoming, FileArrivesWholeWithItsOwner) {
  FileFacts files = one_file();
  files[0].add_names(directory_.name("link"));
  files[0].add_opened_as(directory_.name("gone"));
  const auto made = make(files, {rights_of(kUser)});
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_TRUE(fs::is_empty(directory_.path())) << "no name yet";
  EXPECT_TRUE(fs::is_empty(images_.path())) << "used up";
  ASSERT_EQ(made->held().files_size(), 1);
  EXPECT_EQ(made->held().files(0).made_size(), 3);
  ASSERT_TRUE(made->give_names());
  struct stat status {};
  ASSERT_EQ(::stat(directory_.name("file").c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, kUser);
  EXPECT_EQ(status.st_gid, kUser);
  EXPECT_EQ(status.st_mode, S_IFREG | 0640u);
  EXPECT_EQ(status.st_nlink, 3u);
  EXPECT_EQ(status.st_blocks, 8) << "holes stay holes";
  const std::string content = read(directory_.name("link"));
  EXPECT_EQ(content.size(), 3u << 20);
  EXPECT_EQ(content.substr(1 << 20, 7), "content");
  ASSERT_TRUE(made->drop_temporary_names());
  EXPECT_FALSE(fs::exists(directory_.name("gone")));
  ASSERT_TRUE(remove_names(made->held(), Which::kMade));
  EXPECT_TRUE(fs::is_empty(directory_.path()));
}

TEST_F(HostileIncoming, FilesReplacedByOthersAreNotTouched) {
  const auto made = make(one_file(), {rights_of(kUser)});
  ASSERT_TRUE(made) << made.error().message();
  directory_.write("file", "theirs");
  const Status named = made->give_names();
  ASSERT_FALSE(named);
  EXPECT_THAT(named.error().message(), HasSubstr("File exists"));
  ASSERT_TRUE(remove_names(made->held(), Which::kMade));
  EXPECT_EQ(read(directory_.name("file")), "theirs");
  expect_refused(one_file(), "is here already");
}

TEST_F(HostileIncoming, LinksAreNotFollowed) {
  const Directory elsewhere;
  FileFacts files = one_file();
  fs::create_directory_symlink(elsewhere.path(), directory_.name("link"));
  files[0].set_names(0, directory_.name("link/file"));
  expect_refused(files, "is not here");
  fs::create_symlink(elsewhere.name("file"), directory_.name("file"));
  expect_refused(one_file(), "is here already");
}

TEST_F(HostileIncoming, FileNeedsAMemberThatCouldCreateIt) {
  const auto not_theirs = make(one_file(), {rights_of(kUser - 1)});
  ASSERT_FALSE(not_theirs);
  EXPECT_THAT(not_theirs.error().message(), HasSubstr("belongs to user 65534"));
  fs::permissions(directory_.path(), fs::perms(0755));
  const auto not_there = make(one_file(), {rights_of(kUser)});
  ASSERT_FALSE(not_there);
  EXPECT_THAT(not_there.error().message(), HasSubstr("Permission denied"));
  const auto incoming = look_at(one_file());
  check_owners(*incoming, {rights_of(kUser)}, findings_);
  EXPECT_THAT(findings::reason_of(findings_.list()),
              HasSubstr("user 65534 cannot make " + directory_.name("file")));
  check_owners(*incoming, {rights_of(kUser - 1)}, findings_);
  EXPECT_THAT(findings::reason_of(findings_.list()), HasSubstr("belongs to user 65534"));
}

TEST_F(HostileIncoming, FileOfAForeignGroupIsNotCreated) {
  FileFacts files = one_file();
  files[0].set_gid(0);
  const auto made = make(files, {rights_of(kUser)});
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message(), HasSubstr("owner and permissions"));
}

TEST_F(HostileIncoming, FileOnSharedStorageIsLeftInPlace) {
  const std::string path = directory_.write("file", "shared");
  FileFacts files = one_file();
  files[0].set_device(id_of(path).first);
  files[0].set_inode(id_of(path).second);
  const auto boot = journal::boot_id();
  ASSERT_TRUE(boot);
  const auto incoming = look_at(files, *boot);
  ASSERT_TRUE(incoming);
  EXPECT_THAT(findings_.list(), IsEmpty());
  EXPECT_TRUE(incoming->front().shared);
  EXPECT_THAT(coming_names(*incoming), IsEmpty());
  const auto made = Incoming::make(*incoming, images(), {rights_of(kUser)});
  ASSERT_TRUE(made);
  EXPECT_THAT(made->held().files(), IsEmpty());
  ASSERT_TRUE(look_at(files, "another kernel's"));
  EXPECT_TRUE(findings_.has_blocker());
}

TEST_F(HostileIncoming, ImpossibleDescriptionsAreRefused) {
  const auto refused = [this](const std::function<void(proto::MemoryFile&)>& change) {
    FileFacts files = one_file();
    change(files[0]);
    const auto looked = look_at(files);
    EXPECT_FALSE(looked);
    return !looked && looked.error().code() == Code::kProtocol;
  };
  const std::string here = directory_.path();
  for (const std::string& name :
       {std::string("file"), std::string(), here + "/../file", here + "/", here + "//file",
        here + "/./file", here + std::string("/a\0b", 4), "/" + std::string(5000, 'x')}) {
    EXPECT_TRUE(refused([&](auto& file) { file.set_names(0, name); })) << name;
    EXPECT_TRUE(refused([&](auto& file) { file.add_opened_as(name); })) << name;
  }
  EXPECT_TRUE(refused([](auto& file) { file.clear_names(); }));
  EXPECT_TRUE(refused([](auto& file) { file.set_mode(S_IFDIR | 0755); }));
  EXPECT_TRUE(refused([](auto& file) { file.set_size_bytes(kMaxFileBytes + 1); }));
  EXPECT_TRUE(refused([](auto& file) { file.add_attributes()->set_name("security.capability"); }));
  EXPECT_TRUE(refused([](auto& file) {
    for (int i = 0; i < kMaxNames; ++i) file.add_names(file.names(0));
  }));
  FileFacts many;
  for (int i = 0; i <= kMaxFiles; ++i) *many.Add() = one_file()[0];
  EXPECT_FALSE(look_at(many));
}

TEST_F(HostileIncoming, DirectoryOnDiskOrWithoutRoomIsRefused) {
  FileFacts files = one_file();
  files[0].set_held_bytes(std::uint64_t{1} << 60);
  expect_refused(files, "are free in " + directory_.path().native());
  files[0].set_names(0, "/proc/sys/file");
  expect_refused(files, "is not on a tmpfs here");
}

}  // namespace
}  // namespace gcr::memory_files::test
