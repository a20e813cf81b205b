// A file system that is too small: existing data stays, and the error names the free space.
#include <sys/mount.h>
#include <unistd.h>

#include <cstring>

#include "tests/store/support.h"

namespace gcr::store::test {
namespace {

using testing::HasSubstr;

class FullDisk : public Store {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can mount";
    mounted_ = folder_.path() / "small";
    std::filesystem::create_directory(mounted_);
    ASSERT_EQ(::mount("small", mounted_.c_str(), "tmpfs", 0, "size=12m,mode=0700"), 0)
        << std::strerror(errno);
    path_ = mounted_ / "store";
  }
  void TearDown() override {
    if (!mounted_.empty()) ::umount2(mounted_.c_str(), MNT_DETACH);
  }

  std::filesystem::path mounted_;
};

TEST_F(FullDisk, TooLargeCheckpointIsRefusedWithSizes) {
  take("earlier", {noise(1), noise(2)});
  const auto wanted = options("later");
  {
    const auto writing = Writer::create(directory(), wanted).value();
    Status done;
    for (std::uint64_t i = 10; i < 20 && done; ++i) {
      const auto added = writing->add(noise(i));
      if (!added) done = added.error();
    }
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code(), Code::kResourceExhausted);
    EXPECT_THAT(done.error().message(), HasSubstr("are free"));
    EXPECT_THAT(done.error().message(), HasSubstr(path_.native()));
  }
  expect_has("earlier", {noise(1), noise(2)});
  ASSERT_TRUE(discard(directory(), wanted.checkpoint, wanted.name));
  expect_has("earlier", {noise(1), noise(2)});
  expect_nothing_left_over();
  take("later", {noise(1), noise(3)});
  expect_has("later", {noise(1), noise(3)});
}

TEST_F(FullDisk, PruneWorksOnAFullDisk) {
  take("a", {noise(1), noise(2), noise(3), noise(4)});
  take("b", {noise(1)});
  Bytes rest(kChunkBytes);
  const Directory opened = directory();
  const auto filler = folder_.path() / "small" / "filler";
  for (std::size_t i = 0; i < 8; ++i) {
    Bytes more = read_file(filler);
    more.insert(more.end(), rest.begin(), rest.end());
    write_file(filler, more);
  }
  const auto done = prune(opened, 1, tls_);
  ASSERT_TRUE(done) << done.error().message();
  expect_has("b", {noise(1)});
  std::filesystem::remove(filler);
  ASSERT_TRUE(prune(opened, 1, tls_));
  expect_has("b", {noise(1)});
  expect_nothing_left_over();
}

}  // namespace
}  // namespace gcr::store::test
