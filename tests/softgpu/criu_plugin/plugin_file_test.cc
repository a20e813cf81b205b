// Which files the agent lets CRIU load.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "migrate-agent/criu/launch/plugin.h"
#include "tests/criu/program.h"
#include "tests/softgpu/criu_plugin/plugin_copies.h"

namespace gcr::criu::test {
namespace {

namespace fs = std::filesystem;

class PluginFile : public testing::Test {
 protected:
  Code code_of(std::uint32_t criu_version) {
    const auto opened = Plugin::open(file_, criu_version);
    return opened ? Code::kInvalid : opened.error().code();
  }

  Directory directory_;
  const fs::path file_ = directory_.path() / "amdgpu_plugin.so";
};

TEST_F(PluginFile, FitsReleasesWithTheSameNumberOfHooks) {
  copy_plugin(file_, 13);
  const auto opened = Plugin::open(file_, 40200);
  ASSERT_TRUE(opened) << opened.error().message();
  EXPECT_EQ(opened->name(), "amdgpu_plugin");
  EXPECT_EQ(code_of(40201), Code::kInvalid);
  for (const std::uint32_t other : {31600, 31900, 40000, 40101, 40300, 50000}) {
    EXPECT_EQ(code_of(other), Code::kUnsupported) << other;
  }
}

TEST_F(PluginFile, EveryReleaseAcceptsOnlyItsOwn) {
  const std::pair<std::uint32_t, std::uint32_t> releases[] = {
      {10, 31700}, {10, 31900}, {12, 40000}, {12, 40101}, {13, 40200}, {15, 40300}};
  for (const auto& [hooks, own] : releases) {
    copy_plugin(file_, hooks);
    for (const auto& [others, release] : releases) {
      EXPECT_EQ(code_of(release), others == hooks ? Code::kInvalid : Code::kUnsupported)
          << hooks << " hooks, release " << release;
    }
  }
  copy_plugin(file_, 16);
  EXPECT_EQ(code_of(40300), Code::kUnsupported);
  EXPECT_EQ(code_of(40400), Code::kInvalid);  // a future release
}

TEST_F(PluginFile, ErrorNamesFileHooksAndReleases) {
  copy_plugin(file_, 12);
  const auto opened = Plugin::open(file_, 40201);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().message(),
            "CRIU's plugin " + file_.string() + " has 12 hooks, as in CRIU 4.0; CRIU here is 4.2");
}

TEST_F(PluginFile, MustExistAndBelongToRoot) {
  EXPECT_EQ(code_of(40200), Code::kNotFound);
  copy_plugin(file_, 13);
  fs::permissions(file_, fs::perms::group_write, fs::perm_options::add);
  EXPECT_EQ(code_of(40200), Code::kRefused);
  fs::permissions(file_, fs::perms::group_write, fs::perm_options::remove);
  ASSERT_EQ(::chown(file_.c_str(), 1234, 0), 0);
  EXPECT_EQ(code_of(40200), Code::kRefused);
  EXPECT_FALSE(Plugin::open(directory_.path(), 40200));
}

/// A file truncated anywhere is never read beyond its end.
TEST_F(PluginFile, TruncatedFileIsRefused) {
  copy_plugin(file_, 13);
  const std::string whole = content_of(file_);
  for (std::size_t size = 0; size < whole.size(); size += 1 + whole.size() / 64) {
    std::ofstream(file_, std::ios::binary | std::ios::trunc) << whole.substr(0, size);
    EXPECT_EQ(code_of(40200), Code::kUnsupported) << size;
  }
}

TEST_F(PluginFile, OtherFilesAreRefused) {
  fs::copy_file("/proc/self/exe", file_);
  EXPECT_EQ(code_of(40200), Code::kUnsupported);
  std::ofstream(file_, std::ios::trunc) << "no ELF file at all";
  EXPECT_EQ(code_of(40200), Code::kUnsupported);
}

}  // namespace
}  // namespace gcr::criu::test
