// The directory belongs to its user, who watches it while a checkpoint is written. Unsealed data
// may contain that of other users, so its user gets none of it, and keeps none.
#include <sys/stat.h>
#include <unistd.h>

#include "tests/store/support.h"

namespace gcr::store::test {
namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;
using testing::Not;

constexpr Owner kTheirs{4711, 4711};

class GrowingPacks : public Store {
 protected:
  GrowingPacks() {
    if (::geteuid() == 0) owner_ = kTheirs;
    (void)::chown(folder_.path().c_str(), owner_.uid, owner_.gid);
    fs::create_directory(kept_);
    (void)::chown(kept_.c_str(), owner_.uid, owner_.gid);
  }

  /// As the user: a second name, in a directory of their own, for every existing pack.
  void keep_packs() const {
    const auto as = AsOwner::take(owner_);
    ASSERT_TRUE(as);
    for (const fs::path& pack : packs()) {
      std::error_code error;
      fs::create_hard_link(pack, kept_ / pack.filename(), error);
      EXPECT_FALSE(error) << error.message();
    }
  }

  /// What the user can read of the linked files.
  std::vector<std::string> readable() const {
    const auto as = AsOwner::take(owner_);
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(kept_)) {
      if (!read_file(entry.path()).empty()) names.push_back(entry.path().filename());
    }
    return names;
  }

  const fs::path kept_ = folder_.path() / "kept";
};

TEST_F(GrowingPacks, UserOwnsNothingBeforeTheSeal) {
  {
    const auto writing = writer("first");
    ASSERT_TRUE(describe(*writing, {noise(1), noise(2), noise(3)}));
    keep_packs();
    EXPECT_THAT(readable(), IsEmpty()) << "while it is written";
  }
  EXPECT_THAT(readable(), IsEmpty()) << "after its writer has given up";
  EXPECT_THAT(packs(), IsEmpty());
}

TEST_F(GrowingPacks, UserOwnsEverythingAfterTheSeal) {
  const auto writing = writer("first");
  const auto manifest = describe(*writing, {noise(1), noise(2), noise(3)});
  ASSERT_TRUE(writing->seal(manifest.value()));
  keep_packs();
  EXPECT_THAT(readable(), Not(IsEmpty()));
  for (const fs::path& pack : packs()) {
    struct stat facts {};
    ASSERT_EQ(::stat(pack.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_uid, owner_.uid);
    EXPECT_EQ(facts.st_mode & 07777, 0600U);
  }
  ASSERT_TRUE(writing->publish());
  expect_has("first", {noise(1), noise(2), noise(3)});
}

TEST_F(GrowingPacks, PackNeverReplacesAFile) {
  const auto wanted = options("first");
  const auto writing = Writer::create(directory(), wanted).value();
  const auto manifest = describe(*writing, {noise(1)});
  const fs::path theirs = path_ / pack_file_of(wanted.checkpoint, 0);
  {
    const auto as = AsOwner::take(owner_);
    write_file(theirs, noise(9, 10));
  }
  const Status sealed = writing->seal(manifest.value());
  ASSERT_FALSE(sealed);
  EXPECT_EQ(sealed.error().code(), Code::kRefused);
  EXPECT_EQ(read_file(theirs), noise(9, 10));
}

}  // namespace
}  // namespace gcr::store::test
