// The owner of a directory, and the files that are allowed in it.
#include <fcntl.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "tests/store/support.h"

namespace gcr::store::test {
namespace {

using testing::HasSubstr;

constexpr uid_t kOtherUser = 4711;

class StoreDirectory : public Store {
 protected:
  Error refusal() const {
    const auto made = Directory::create(path_, this_user());
    return made ? Error(Code::kInvalid, "it was taken") : made.error();
  }
};

/// The owner of a new file.
struct stat new_file(const std::filesystem::path& path) {
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  struct stat facts {};
  EXPECT_TRUE(file);
  EXPECT_EQ(::fstat(file.get(), &facts), 0);
  return facts;
}

TEST_F(StoreDirectory, IsPrivateToItsOwner) {
  take("first", {noise(1)});
  const auto mode = [](const std::filesystem::path& path) {
    struct stat facts {};
    EXPECT_EQ(::stat(path.c_str(), &facts), 0);
    return facts.st_mode & 07777;
  };
  EXPECT_EQ(mode(path_), 0700u);
  EXPECT_EQ(mode(path_ / "packs"), 0700u);
  EXPECT_EQ(mode(manifest_file("first")), 0600u);
  EXPECT_EQ(mode(packs().front()), 0600u);
}

TEST_F(StoreDirectory, IsRefusedWithForeignFiles) {
  std::filesystem::create_directory(path_);
  ::chmod(path_.c_str(), 0700);
  write_file(path_ / "thesis.txt", {});
  EXPECT_EQ(refusal().code(), Code::kRefused);
  EXPECT_THAT(refusal().message(), HasSubstr("thesis.txt"));
}

TEST_F(StoreDirectory, IsRefusedIfOpenToOthers) {
  directory();
  for (const mode_t mode : {0701, 0740, 0720, 0777}) {
    ::chmod(path_.c_str(), mode);
    EXPECT_EQ(refusal().code(), Code::kRefused);
    EXPECT_THAT(refusal().message(), HasSubstr("chmod 700"));
    EXPECT_FALSE(Directory::open(path_, this_user()));
  }
}

TEST_F(StoreDirectory, RelativeAndMissingPathsAreRefused) {
  EXPECT_EQ(Directory::open(path_, this_user()).error().code(), Code::kNotFound);
  EXPECT_EQ(Directory::create("store", this_user()).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(Directory::create(path_ / "a" / "b", this_user()).error().code(), Code::kNotFound);
}

TEST_F(StoreDirectory, LinksInPlaceOfFilesAreNotFollowed) {
  take("first", {noise(1)});
  const auto elsewhere = folder_.path() / "elsewhere";
  std::filesystem::rename(manifest_file("first"), elsewhere);
  std::filesystem::create_symlink(elsewhere, manifest_file("first"));
  EXPECT_EQ(read_manifest(directory(), file_of("first"), tls_).error().code(), Code::kRefused);
  std::filesystem::remove(manifest_file("first"));
  std::filesystem::rename(elsewhere, manifest_file("first"));
  std::filesystem::rename(path_ / "packs", elsewhere);
  std::filesystem::create_symlink(elsewhere, path_ / "packs");
  EXPECT_FALSE(Packs::open(directory()));
  EXPECT_FALSE(Writer::create(directory(), options("second")));
  EXPECT_FALSE(prune(directory(), 1, tls_));
}

TEST_F(StoreDirectory, FifoInPlaceOfAFileDoesNotBlock) {
  take("first", {noise(1)});
  const auto fifo = [](const std::filesystem::path& path) {
    std::filesystem::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  };
  const auto pack = packs().front();
  fifo(pack);
  EXPECT_FALSE(verify(directory(), read("first")));
  fifo(manifest_file("first"));
  EXPECT_EQ(read_manifest(directory(), file_of("first"), tls_).error().code(), Code::kRefused);
  fifo(path_ / "writing");
  EXPECT_FALSE(directory().lock());
}

TEST_F(StoreDirectory, LinkInPlaceOfANewFileIsNotFollowed) {
  const Directory opened = directory();
  const auto victim = folder_.path() / "victim";
  write_file(victim, noise(1, 10));
  std::filesystem::create_symlink(victim, path_ / "packs" / "x");
  EXPECT_FALSE(opened.open_file("packs/x", O_RDWR | O_CREAT));
  EXPECT_FALSE(opened.open_file("packs/x", O_RDWR | O_CREAT | O_EXCL));
  EXPECT_FALSE(opened.open_file("../victim", O_RDWR));
  EXPECT_TRUE(opened.remove("packs/x"));
  EXPECT_EQ(read_file(victim), noise(1, 10));
}

TEST_F(StoreDirectory, NamesAreRestricted) {
  EXPECT_TRUE(is_name("2026-11-25T10-00-00.123-4711"));
  EXPECT_TRUE(is_name(std::string(128, 'a')));
  EXPECT_FALSE(is_name(""));
  EXPECT_FALSE(is_name(".hidden"));
  EXPECT_FALSE(is_name("a/b"));
  EXPECT_FALSE(is_name(std::string_view("a\0b", 3)));
  EXPECT_FALSE(is_name(std::string(129, 'a')));
}

class OtherUsers : public StoreDirectory {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can act as others";
    ::chmod(folder_.path().c_str(), 0711);
    home_ = folder_.path() / "home";
    std::filesystem::create_directory(home_);
    ASSERT_EQ(::chown(home_.c_str(), kOtherUser, kOtherUser), 0);
  }

  const Owner other_user_{kOtherUser, kOtherUser};
  std::filesystem::path home_;
};

TEST_F(OtherUsers, OwnTheFilesWrittenForThem) {
  path_ = home_ / "store";
  auto made = Directory::create(path_, other_user_);
  ASSERT_TRUE(made) << made.error().message();
  {
    const auto writing = Writer::create(*std::move(made), options("first")).value();
    const proto::Manifest manifest = describe(*writing, {noise(1)}).value();
    ASSERT_TRUE(writing->seal(manifest));
    ASSERT_TRUE(writing->publish());
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
    struct stat facts {};
    ASSERT_EQ(::stat(entry.path().c_str(), &facts), 0);
    EXPECT_EQ(facts.st_uid, kOtherUser) << entry.path();
    EXPECT_EQ(facts.st_gid, kOtherUser) << entry.path();
  }
  EXPECT_EQ(Directory::open(path_, this_user()).error().code(), Code::kRefused);
  EXPECT_EQ(refusal().code(), Code::kRefused);
  EXPECT_THAT(refusal().message(), HasSubstr("belongs to"));
}

TEST_F(OtherUsers, NeedWritePermission) {
  const auto made = Directory::create(path_, other_user_);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kPermissionDenied);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(OtherUsers, NeedReadPermission) {
  path_ = home_ / "store";
  const Directory opened = Directory::create(path_, other_user_).value();
  write_file(path_ / "a.checkpoint", noise(1, 10));
  ::chmod((path_ / "a.checkpoint").c_str(), 0600);
  EXPECT_EQ(opened.open_file("a.checkpoint", O_RDONLY).error().code(), Code::kPermissionDenied);
}

TEST_F(OtherUsers, OnlyTheCallingThreadActsAsThem) {
  std::thread([&] {  // the thread whose groups, and so on, end with it
    const auto as = AsOwner::take(other_user_);
    ASSERT_TRUE(as);
    const struct stat own = new_file(home_ / "own");
    EXPECT_EQ(own.st_uid, kOtherUser);
    EXPECT_EQ(own.st_gid, kOtherUser);
    EXPECT_EQ(::getgroups(0, nullptr), 0);
    std::thread([&] {
      EXPECT_EQ(::setfsuid(static_cast<uid_t>(-1)), static_cast<int>(kOtherUser));
    }).join();  // inherited by a thread
  })
      .join();
  const struct stat mine = new_file(home_ / "mine");
  EXPECT_EQ(mine.st_uid, 0u);
}

TEST_F(OtherUsers, ThreadRegainsItsRights) {
  { const auto as = AsOwner::take(other_user_); }
  EXPECT_EQ(::setfsuid(static_cast<uid_t>(-1)), 0);
  EXPECT_EQ(::setfsgid(static_cast<gid_t>(-1)), 0);
  EXPECT_EQ(new_file(home_ / "after").st_uid, 0u);  // CAP_DAC_OVERRIDE too: it is another's
}

}  // namespace
}  // namespace gcr::store::test
